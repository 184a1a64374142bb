/** Schedules: what needs somebody first, then by name; each with its rule in words and its last twenty outcomes. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { pauseSchedule, resumeSchedule, runNow } from "../actions.tsx";
import { apiUrl, ask, wordsOf } from "../api.ts";
import { command } from "../cli.ts";
import { inWords, ruleText, zoneOf } from "../cron.ts";
import { EditSchedule } from "../editschedule.tsx";
import { count, counted, instant, SECOND } from "../format.ts";
import { useCalm, useEvery, useNews, useSettled, useTitle } from "../hooks.ts";
import { bindKeys } from "../keys.ts";
import { onReadAgain } from "../live.ts";
import { Dots, forgetRecent } from "../recent.tsx";
import { go, href, route } from "../router.ts";
import { may, now, serverNow, stats } from "../state.ts";
import type { Page, Schedule } from "../types.ts";
import { Badge, Command, DO, Empty, Loading, Problem, ScheduleLink, Table, Text, Time } from "../ui.tsx";

const PAGE = 100;
const PAGES_SEARCHED = 50;
const LATE_MS = 10 * SECOND;

/** Say in which state a schedule is; the worst thing counts. */
export function stateOf(schedule: Schedule, at: number): string {
  if (schedule.attention) return "held";
  if (schedule.paused) return "paused";
  if (schedule.next_at !== null && at - instant(schedule.next_at) > LATE_MS) return "late";
  if (schedule.failing >= 3) return "failing";
  return schedule.next_at === null && schedule.trigger.kind !== "after" ? "off" : "on";
}

const RANKS: readonly string[] = ["held", "late", "failing"];

/** Put what needs somebody first; the rest stays in its order. */
export function troubledFirst(schedules: readonly Schedule[], at: number): Schedule[] {
  const rank = (schedule: Schedule): number => {
    const place = RANKS.indexOf(stateOf(schedule, at));
    return place < 0 ? RANKS.length : place;
  };
  return [...schedules].sort((one, other) => rank(one) - rank(other));
}

interface Found {
  items: Schedule[];
  next: string | null;
  searched: number;
}

async function readPage(words: string, after: string | undefined, signal: AbortSignal): Promise<Found> {
  const needle = words.toLowerCase();
  const items: Schedule[] = [];
  let cursor = after;
  let searched = 0;
  for (let page = 0; page < (needle ? PAGES_SEARCHED : 1); page++) {
    const found: Page<Schedule> = await ask<Page<Schedule>>(apiUrl(["schedules"], { limit: needle ? 200 : PAGE, cursor }), { signal });
    searched += found.items.length;
    items.push(...found.items.filter((one) => !needle || [one.name, one.task, one.rule, one.queue, ...one.tags].some((text) => text.toLowerCase().includes(needle))));
    cursor = found.next_cursor ?? undefined;
    if (cursor === undefined || items.length >= PAGE) break;
  }
  return { items, next: cursor ?? null, searched };
}

export function SchedulesPage() {
  useTitle("Schedules");
  const { query } = route.value;
  const [text, setText] = useState(query["q"] ?? "");
  const words = useSettled(text.trim(), 200);
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [focus, setFocus] = useState(-1);
  const frame = useRef<HTMLDivElement>(null);
  const reading = useRef<AbortController | null>(null);
  const after = query["cursor"];

  const read = async (): Promise<void> => {
    reading.current?.abort();
    const mine = new AbortController();
    reading.current = mine;
    try {
      const page = await readPage(words, after, mine.signal);
      setFound({ ...page, items: troubledFirst(page.items, serverNow()) });
      setProblem(null);
    } catch (error) {
      if (!mine.signal.aborted) setProblem(wordsOf(error));
    }
  };
  useEffect(() => {
    void read();
    if ((query["q"] ?? "") !== words) go(href(["schedules"], { ...query, q: words, cursor: undefined }), true);
    const leave = onReadAgain(() => void read());
    return () => {
      leave();
      reading.current?.abort();
    };
  }, [words, after]);
  // Their next instants move on as they are decided; the order of the rows stays.
  const refresh = async (): Promise<void> => {
    try {
      const page = await readPage(words, after, AbortSignal.timeout(20_000));
      const fresh = new Map(page.items.map((one) => [one.name, one]));
      setFound((before) => before && { ...before, items: before.items.map((one) => fresh.get(one.name) ?? one) });
    } catch {
      // The figures say it when the server is away.
    }
  };
  useEvery(10 * SECOND, () => void refresh());
  const soon = useCalm(() => void refresh(), 2 * SECOND);
  useNews((news) => {
    const names = new Set(news.filter((one) => one.kind !== "progress").map((one) => one.job.schedule));
    if (found?.items.some((one) => names.has(one.name))) {
      for (const name of names) if (name !== null) forgetRecent(name);
      soon();
    }
  });
  const replace = (changed: Schedule): void => setFound((before) => before && { ...before, items: before.items.map((one) => (one.name === changed.name ? { ...one, ...changed } : one)) });

  const items = found?.items ?? [];
  useLayoutEffect(() => {
    const move = (step: number): void => {
      const place = Math.max(0, Math.min(items.length - 1, focus + step));
      setFocus(place);
      frame.current?.querySelectorAll<HTMLElement>("tbody tr")[place]?.querySelector<HTMLElement>("a")?.focus();
    };
    return bindKeys({ j: () => move(1), k: () => move(-1), Enter: () => items[focus] && go(href(["schedules", items[focus].name])) });
  });

  const total = stats.value?.schedules.total;
  const canAct = may("operator");
  return (
    <div ref={frame}>
      <header class="page-head">
        <h1>Schedules</h1>
        {canAct && (
          <div class="actions">
            <a class="button main" href="#/schedules?new=1">
              New schedule
            </a>
          </div>
        )}
      </header>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <label class="grow">
          Filter
          <input data-filter type="search" value={text} placeholder="name, task, rule, queue or tag" onInput={(event) => setText(event.currentTarget.value)} spellcheck={false} />
        </label>
        {total !== undefined && (
          <p class="faint filter-note" role="status">
            {words && found ? `${count(items.length)} of ${count(found.searched)} match` : counted(total, "schedule")}
            {stats.value?.schedules.late ? ` · ${stats.value.schedules.late} late` : ""}
            {stats.value?.schedules.paused ? ` · ${stats.value.schedules.paused} paused` : ""}
          </p>
        )}
      </form>
      <Problem words={problem} again={() => void read()} />
      {found === null && problem === null && <Loading what="schedules" />}
      {found !== null && items.length === 0 && (words ? <Empty title="No schedule matches" /> : <NoSchedules />)}
      {items.length > 0 && (
        <Table label="Schedules" columns={["State", "Schedule", "Rule", "Next", "Last 20", ...(canAct ? [DO] : [])]}>
          {items.map((schedule, place) => (
            <Row key={schedule.name} schedule={schedule} isCurrent={place === focus} onFocus={() => setFocus(place)} canAct={canAct} replace={replace} />
          ))}
        </Table>
      )}
      {found !== null && (found.next !== null || after !== undefined) && (
        <nav class="pager" aria-label="Older and newer">
          <a class="button" href={href(["schedules"], { q: words })} {...(after === undefined ? { "aria-disabled": "true" as const } : {})}>
            First
          </a>
          {found.next !== null && (
            <a class="button" href={href(["schedules"], { q: words, cursor: found.next })}>
              More
            </a>
          )}
        </nav>
      )}
      {query["new"] && canAct && <EditSchedule schedule={null} onClose={() => go("#/schedules", true)} onDone={(made) => go(href(["schedules", made.name]))} />}
    </div>
  );
}

function Row({ schedule, isCurrent, onFocus, canAct, replace }: { schedule: Schedule; isCurrent: boolean; onFocus: () => void; canAct: boolean; replace: (changed: Schedule) => void }) {
  const zone = zoneOf(schedule.trigger);
  const words = inWords(schedule.trigger);
  const state = stateOf(schedule, now.value);
  return (
    <tr class={isCurrent ? "current" : ""} onFocusCapture={onFocus}>
      <td data-label="State">
        <Badge state={state} />
      </td>
      <td data-label="Schedule" class="cell-main">
        <strong>
          <ScheduleLink name={schedule.name} />
        </strong>
        <div class="small-text faint">
          <Text of={schedule.task} most={60} />
          {schedule.attention && <> · <Text of={schedule.attention} most={100} /></>}
          {schedule.failing > 0 && ` · ${counted(schedule.failing, "failure")} in a row`}
        </div>
      </td>
      <td data-label="Rule" class="cell-words">
        {words && <div><Text of={words} most={100} /></div>}
        <div class="small-text faint mono">
          <Text of={ruleText(schedule.trigger)} most={60} /> {zone}
        </div>
      </td>
      <td data-label="Next" class="figure">
        {schedule.paused ? <span class="faint">paused</span> : schedule.next_at ? <Time at={schedule.next_at} zone={zone} ahead /> : <span class="faint">{schedule.trigger.kind === "after" ? "when its job ends" : "none"}</span>}
      </td>
      <td data-label="Last 20">
        <Dots name={schedule.name} />
      </td>
      {canAct && (
        <td class="cell-do">
          <button type="button" class="small" onClick={() => void runNow(schedule)} aria-label={`Run now: ${schedule.name}`}>
            Run now
          </button>
          <button type="button" class="small ghost" onClick={() => (schedule.paused ? void resumeSchedule(schedule, replace) : pauseSchedule(schedule, replace))} aria-label={`${schedule.paused ? "Resume" : "Pause"} ${schedule.name}`}>
            {schedule.paused ? "Resume" : "Pause"}
          </button>
        </td>
      )}
    </tr>
  );
}

function NoSchedules() {
  return (
    <Empty title="No schedules yet">
      <p>Declare one beside its task, and it is there when the app starts:</p>
      <pre class="sample">{`@app.task
def report():
    ...

app.schedule("daily-report", report, Cron("0 6 * * *", tz="Europe/Berlin"))`}</pre>
      <p>Or make one now, here with “New schedule” or in a terminal:</p>
      <Command line={command(["schedules", "put", "daily-report", "--task", "report", "--cron", "0 6 * * *", "--tz", "Europe/Berlin"])} />
    </Empty>
  );
}
