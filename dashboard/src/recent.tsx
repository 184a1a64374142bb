/** The last occurrences of a schedule as a row of marks: shape and colour say how each went. Read when it comes into view. */
import { useEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { apiUrl, ask } from "./api.ts";
import { counted, inZone, instant } from "./format.ts";
import { href } from "./router.ts";
import { lookOf } from "./statuses.ts";
import type { Job, Occurrence, Page } from "./types.ts";
import { Icon } from "./ui.tsx";

export interface Recent {
  occurrence: Occurrence;
  /** How its job ended, or where it is. */
  status: string | null;
}

const SHOWN = 20;
const AT_ONCE = 3;
const kept = new Map<string, Recent[]>();
const stale = signal(0);
const waiting: (() => Promise<void>)[] = [];
let busy = 0;

/** Have the marks of a schedule read again when they are looked at. */
export function forgetRecent(name: string): void {
  if (kept.delete(name)) stale.value++;
}

/** Put what was decided together with what became of it. */
export function joined(occurrences: readonly Occurrence[], jobs: readonly Job[]): Recent[] {
  const states = new Map(jobs.map((job) => [job.id, job.status]));
  return occurrences.map((occurrence) => ({ occurrence, status: (occurrence.job_id !== null && states.get(occurrence.job_id)) || null }));
}

/** Say how an occurrence looks: by its job where it has one. */
export function stateOfRecent(one: Recent): string {
  return one.occurrence.outcome === "fired" && one.status !== null ? one.status : one.occurrence.outcome;
}

async function readRecent(name: string): Promise<Recent[]> {
  const [occurrences, jobs] = await Promise.all([
    ask<Page<Occurrence>>(apiUrl(["schedules", name, "occurrences"], { limit: SHOWN })),
    ask<Page<Job>>(apiUrl(["jobs"], { schedule: name, limit: SHOWN })),
  ]);
  return joined(occurrences.items, jobs.items);
}

function enqueue(work: () => Promise<void>): void {
  waiting.push(work);
  void next();
}

async function next(): Promise<void> {
  if (busy >= AT_ONCE) return;
  const work = waiting.shift();
  if (work === undefined) return;
  busy++;
  await work();
  busy--;
  void next();
}

export function Dots({ name }: { name: string }) {
  const element = useRef<HTMLAnchorElement>(null);
  const [found, setFound] = useState<Recent[] | null>(kept.get(name) ?? null);
  const [isSeen, setSeen] = useState(false);
  const turn = stale.value;
  useEffect(() => {
    const watch = new IntersectionObserver((entries) => setSeen(entries.some((entry) => entry.isIntersecting)));
    if (element.current) watch.observe(element.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (!isSeen || kept.has(name)) return;
    kept.set(name, found ?? []);
    enqueue(async () => {
      try {
        const recent = await readRecent(name);
        kept.set(name, recent);
        setFound(recent);
      } catch {
        kept.delete(name);
      }
    });
  }, [isSeen, turn, name]);
  const marks = [...(found ?? [])].reverse();
  return (
    <a ref={element} class="dots" href={href(["schedules", name])} aria-label={`The last occurrences of ${name}: ${summaryOf(marks)}`}>
      {marks.map((one) => {
        const look = lookOf(stateOfRecent(one));
        const { occurrence } = one;
        const title = `${inZone(instant(occurrence.instant), undefined)}: ${look.word.toLowerCase()}${occurrence.count > 1 ? ` ×${occurrence.count}` : ""}, ${occurrence.reason}`;
        return (
          <span key={occurrence.instant} class={`dot tone-${look.tone}`} title={title}>
            <Icon shape={look.shape} />
          </span>
        );
      })}
      {found !== null && marks.length === 0 && <span class="faint">none yet</span>}
    </a>
  );
}

function summaryOf(marks: readonly Recent[]): string {
  if (!marks.length) return "none yet";
  const numbers = new Map<string, number>();
  for (const one of marks) {
    const word = lookOf(stateOfRecent(one)).word.toLowerCase();
    numbers.set(word, (numbers.get(word) ?? 0) + one.occurrence.count);
  }
  return [...numbers].map(([word, number]) => counted(number, word, word)).join(", ");
}
