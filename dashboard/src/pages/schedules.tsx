/** Schedules: those that need attention first, then by name; each with its trigger in words and its last twenty outcomes. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { pauseSchedule, resumeSchedule, runNow } from "../actions.tsx";
import { apiUrl, ask, wordsOf, type Query } from "../api.ts";
import { command } from "../cli.ts";
import { inWords, ruleText, zoneOf } from "../cron.ts";
import { EditSchedule } from "../editschedule.tsx";
import { count, counted, instant, inZone, SECOND } from "../format.ts";
import { useCalm, useEvery, useNews, useSettled, useTitle } from "../hooks.ts";
import { bindKeys } from "../keys.ts";
import { onReadAgain } from "../live.ts";
import { Dots } from "../recent.tsx";
import { go, href, route } from "../router.ts";
import { may, now, seesAll, serverNow, stats } from "../state.ts";
import type { Page, Schedule } from "../models.ts";
import { Badge, Command, DO, Empty, Loading, Problem, ScheduleLink, Select, Table, Text, Time } from "../ui.tsx";
import { scheduleHref } from "../whose.ts";

const PAGE = 50;
const LATE_MS = 10 * SECOND;

/** Return the state of a schedule; the worst one counts. */
export function stateOf(schedule: Schedule, at: number): string {
  if (schedule.attention) return "held";
  if (schedule.paused) return "paused";
  if (schedule.next_at !== null && at - instant(schedule.next_at) > LATE_MS) return "late";
  if (schedule.failing >= 3) return "failing";
  return schedule.next_at === null && schedule.trigger.kind !== "after" ? "off" : "on";
}

const RANKS: readonly string[] = ["held", "late", "failing"];

/** Put schedules that need attention first; the rest keeps its order. */
export function troubledFirst(schedules: readonly Schedule[], at: number): Schedule[] {
  const rank = (schedule: Schedule): number => {
    const place = RANKS.indexOf(stateOf(schedule, at));
    return place < 0 ? RANKS.length : place;
  };
  return [...schedules].sort((one, other) => rank(one) - rank(other));
}

function keyOf(schedule: Schedule): string {
  return `${schedule.tenant}\u0000${schedule.name}`;
}

interface Found {
  items: Schedule[];
  next: string | null;
}

/** The states to filter by, and their names. */
const STATES: readonly (readonly [string, string])[] = [
  ["", "any"],
  ["active", "active"],
  ["late", "late"],
  ["attention", "held"],
  ["failing", "failing"],
  ["paused", "paused"],
  ["ended", "ended"],
];

async function readPage(wanted: Readonly<Record<string, string | undefined>>, signal: AbortSignal): Promise<Found> {
  const read = (more: Query): Promise<Page<Schedule>> => ask<Page<Schedule>>(apiUrl(["schedules"], { ...wanted, limit: PAGE, recent: 20, ...more }), { signal });
  const needy = !wanted["state"] && !wanted["cursor"] && needsSomebody() ? NEEDY : [];
  // Schedules that need attention come first, whatever page they would be on.
  const [page, ...others] = await Promise.all([read({}), ...needy.map((state) => read({ state }))]);
  const known = new Set<string>();
  const items = [...others.flatMap((one) => one.items), ...page.items].filter((one) => !known.has(keyOf(one)) && known.add(keyOf(one)));
  return { items, next: page.next_cursor };
}

const NEEDY = ["attention", "late", "failing"] as const;

function needsSomebody(): boolean {
  const figures = stats.value?.schedules;
  return figures === undefined || figures.late + figures.attention + (stats.value?.failing.length ?? 0) > 0;
}

export function SchedulesPage() {
  useTitle("Schedules");
  const { query } = route.value;
  const [text, setText] = useState(query["q"] ?? "");
  const words = useSettled(text.trim(), 20);
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [focus, setFocus] = useState(-1);
  const frame = useRef<HTMLDivElement>(null);
  const reading = useRef<AbortController | null>(null);
  const after = query["cursor"];
  const state = query["state"] ?? "";
  const wanted = { q: words, state, cursor: after };

  const read = async (): Promise<void> => {
    reading.current?.abort();
    const mine = new AbortController();
    reading.current = mine;
    try {
      const page = await readPage(wanted, mine.signal);
      setFound({ ...page, items: troubledFirst(page.items, serverNow()) });
      setProblem(null);
    } catch (error) {
      if (!mine.signal.aborted) setProblem(wordsOf(error));
    }
  };
  useLayoutEffect(() => {
    void read();
    if ((query["q"] ?? "") !== words) go(href(["schedules"], { ...query, q: words, cursor: undefined }), true);
    const leave = onReadAgain(() => void read());
    return () => {
      leave();
      reading.current?.abort();
    };
  }, [words, after, state]);
  // Next instants advance as they are decided; the rows keep their order.
  const refresh = async (): Promise<void> => {
    try {
      const page = await readPage(wanted, AbortSignal.timeout(20_000));
      const fresh = new Map(page.items.map((one) => [keyOf(one), one]));
      setFound((before) => before && { ...before, items: before.items.map((one) => fresh.get(keyOf(one)) ?? one) });
    } catch {
      // The statistics show it when the server is unavailable.
    }
  };
  useEvery(10 * SECOND, () => void refresh());
  const soon = useCalm(() => void refresh(), 2 * SECOND);
  useNews((news) => {
    const names = new Set(news.filter((one) => one.kind !== "progress").map((one) => one.job.schedule));
    if (found?.items.some((one) => names.has(one.name))) soon();
  });
  const replace = (changed: Schedule): void => setFound((before) => before && { ...before, items: before.items.map((one) => (keyOf(one) === keyOf(changed) ? { ...one, ...changed } : one)) });

  const items = found?.items ?? [];
  // Unchanged rows are not rendered again: a page of schedules has a thousand marks.
  const cells = useMemo(() => items.map((schedule) => cellsOf(schedule, replace)), [found]);
  useLayoutEffect(() => {
    const move = (step: number): void => {
      const place = Math.max(0, Math.min(items.length - 1, focus + step));
      setFocus(place);
      frame.current?.querySelectorAll<HTMLElement>("tbody tr")[place]?.querySelector<HTMLElement>("a")?.focus();
    };
    return bindKeys({ j: () => move(1), k: () => move(-1), Enter: () => items[focus] && go(scheduleHref(items[focus])) });
  });

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
          <input data-filter type="search" value={text} placeholder="name or task" onInput={(event) => setText(event.currentTarget.value)} spellcheck={false} />
        </label>
        <Select label="State" value={state} onValue={(value) => go(href(["schedules"], { q: words, state: value }))} options={STATES} />
        <Numbers match={(words || state) && found ? `${count(items.length)}${found.next === null ? "" : " and more"}` : ""} />
      </form>
      <Problem words={problem} again={() => void read()} />
      {found === null && problem === null && <Loading what="schedules" />}
      {found !== null && items.length === 0 && (words || state ? <Empty title="No schedule matches" /> : <NoSchedules />)}
      {items.length > 0 && (
        <Table
          label="Schedules"
          columns={[["State"], ["Schedule", "cell-main"], ["Trigger", "cell-words"], ["Next", "figure"], ["Last 20"], canAct && DO]}
          lines={items.map((schedule, place) => ({ key: keyOf(schedule), class: place === focus ? "current" : "", onFocusCapture: () => setFocus(place), cells: cells[place]! }))}
        />
      )}
      {found !== null && (found.next !== null || after !== undefined) && (
        <nav class="pager" aria-label="Older and newer">
          <a class="button" href={href(["schedules"], { q: words, state })} {...(after === undefined ? { "aria-disabled": "true" as const } : {})}>
            First
          </a>
          {found.next !== null && (
            <a class="button" href={href(["schedules"], { q: words, state, cursor: found.next })}>
              More
            </a>
          )}
        </nav>
      )}
      {query["new"] && canAct && <EditSchedule schedule={null} onClose={() => go("#/schedules", true)} onDone={(made) => go(scheduleHref(made))} />}
    </div>
  );
}

function Numbers({ match }: { match: string }) {
  const figures = stats.value?.schedules;
  if (figures === undefined) return null;
  return (
    <p class="faint filter-note" role="status">
      {match ? `${match} of ${count(figures.total)} match` : counted(figures.total, "schedule")}
      {figures.late ? ` · ${figures.late} late` : ""}
      {figures.paused ? ` · ${figures.paused} paused` : ""}
    </p>
  );
}

/** The time-dependent state: its own component, so that a tick of the clock renders nothing else. */
function State({ schedule }: { schedule: Schedule }) {
  return <Badge state={stateOf(schedule, now.value)} />;
}

function cellsOf(schedule: Schedule, replace: (changed: Schedule) => void): ComponentChildren[] {
  const zone = zoneOf(schedule.trigger);
  const words = inWords(schedule.trigger);
  return [
    <State schedule={schedule} />,
    <>
      <strong>
        <ScheduleLink name={schedule.name} tenant={schedule.tenant} />
      </strong>
      <div class="small-text faint">
        <Text of={schedule.task} most={60} />
        {seesAll.value && schedule.tenant !== "default" && <> · <Text of={schedule.tenant} most={60} /></>}
        {schedule.attention && <> · <Text of={schedule.attention} most={100} /></>}
        {schedule.failing > 0 && ` · ${counted(schedule.failing, "failure")} in a row`}
      </div>
    </>,
    <>
      {words && <div><Text of={words} most={100} /></div>}
      <div class="small-text faint mono">
        <Text of={ruleText(schedule.trigger)} most={60} /> {zone}
      </div>
    </>,
    schedule.next_at && !schedule.paused ? <NextAt at={schedule.next_at} zone={zone} /> : <span class="faint">{schedule.paused ? "paused" : schedule.trigger.kind === "after" ? "when its job ends" : "none"}</span>,
    <Dots schedule={schedule} />,
    <>
      <button type="button" class="small" onClick={() => void runNow(schedule)} aria-label={`Run now: ${schedule.name}`}>
        Run now
      </button>
      <button type="button" class="small ghost" onClick={() => (schedule.paused ? void resumeSchedule(schedule, replace) : pauseSchedule(schedule, replace))} aria-label={`${schedule.paused ? "Resume" : "Pause"} ${schedule.name}`}>
        {schedule.paused ? "Resume" : "Pause"}
      </button>
    </>,
  ];
}

/** The next instant: relative, in local time, and in the time zone of the schedule if that differs. */
function NextAt({ at, zone }: { at: string; zone: string | undefined }) {
  const here = inZone(instant(at), undefined);
  const there = zone && inZone(instant(at), zone);
  return (
    <>
      <Time at={at} zone={zone} ahead />
      <div class="small-text faint">{here.slice(0, 16)}</div>
      {there && there !== here && (
        <div class="small-text faint">
          {there.slice(0, 16)} {zone}
        </div>
      )}
    </>
  );
}

function NoSchedules() {
  return (
    <Empty title="No schedules yet">
      <p>Declare one next to its task; it is created when the app starts:</p>
      <pre class="sample">{`@app.task
def report():
    ...

app.schedule("daily-report", report, Cron("0 6 * * *", tz="Europe/Berlin"))`}</pre>
      <p>Or create one now, here with “New schedule” or in a terminal:</p>
      <Command line={command(["schedules", "put", "daily-report"], { task: "report", cron: "0 6 * * *", tz: "Europe/Berlin" })} />
    </Empty>
  );
}
