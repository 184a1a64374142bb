/** The last occurrences of a schedule as a row of marks: shape and colour show the outcome. */
import type { JSX } from "preact";
import { counted } from "./format.ts";
import { lookOf } from "./statuses.ts";
import type { Schedule } from "./models.ts";
import type { Job, Occurrence, Recent } from "./types.ts";
import { SHAPES } from "./ui.tsx";
import { scheduleHref } from "./whose.ts";

/** Combine decisions with the statuses of their jobs. */
export function joined(occurrences: readonly Occurrence[], jobs: readonly Job[]): (Occurrence & { status: string | null })[] {
  const states = new Map(jobs.map((job) => [job.id, job.status]));
  return occurrences.map((one) => ({ ...one, status: (one.job_id !== null && states.get(one.job_id)) || null }));
}

/** Return the style of an occurrence: by its job if it has one. */
export function stateOfRecent(outcome: string, jobStatus: string | null): string {
  return outcome === "fired" && jobStatus !== null ? jobStatus : outcome;
}

const SHOWN = 20;
const APART = 17;

/** Describe the outcome of one occurrence, with the reason. */
function wordsOf(one: Recent): string {
  return `${one.at}: ${lookOf(stateOfRecent(one.outcome, one.job_status)).word.toLowerCase()}${one.count > 1 ? ` ×${one.count}` : ""}, ${one.reason}`;
}

/** One SVG for all marks of a row: a list has a thousand marks, so each must be cheap. */
export function Dots({ schedule }: { schedule: Schedule }) {
  const marks = schedule.recent ?? [];
  // The title follows the pointer, for the mark below it.
  const name = (event: JSX.TargetedPointerEvent<SVGSVGElement>): void => {
    const box = event.currentTarget.getBoundingClientRect();
    const one = marks[Math.floor(((event.clientX - box.left) / box.width) * SHOWN)];
    event.currentTarget.firstElementChild!.textContent = one ? wordsOf(one) : "";
  };
  return (
    <a class="dots" href={scheduleHref(schedule)} aria-label={`The last occurrences of ${schedule.name}: ${summaryOf(marks)}`}>
      {marks.length === 0 ? (
        <span class="faint">none yet</span>
      ) : (
        <svg class="icon" viewBox={`0 0 ${SHOWN * APART} 16`} onPointerMove={name}>
          <title />
          {marks.map((one, place) => {
            const look = lookOf(stateOfRecent(one.outcome, one.job_status));
            const [path, kind = ""] = SHAPES[look.shape];
            return <path key={one.at} class={`dot tone-${look.tone} ${kind}`} d={path} transform={`translate(${place * APART})`} />;
          })}
        </svg>
      )}
    </a>
  );
}

/** Describe the marks in words. */
export function summaryOf(marks: readonly Recent[]): string {
  if (!marks.length) return "none yet";
  const numbers = new Map<string, number>();
  for (const one of marks) {
    const word = lookOf(stateOfRecent(one.outcome, one.job_status)).word.toLowerCase();
    numbers.set(word, (numbers.get(word) ?? 0) + one.count);
  }
  return [...numbers].map(([word, number]) => counted(number, word, word)).join(", ");
}
