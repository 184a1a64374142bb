/** Schedule: its next instants, decisions with reasons, job durations, and the audit of its ledger. */
import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import { pauseSchedule, removeSchedule, resumeSchedule, runNow } from "../actions.tsx";
import { apiUrl } from "../api.ts";
import { Backfill } from "../backfill.tsx";
import { Chart } from "../chart.tsx";
import { command } from "../cli.ts";
import { inWords, readDuration, ruleText, spanText, zoneOf } from "../cron.ts";
import { EditSchedule } from "../editschedule.tsx";
import { count, counted, dateIn, DAY, duration, instant, SECOND, visible } from "../format.ts";
import { HeatMap } from "../heatmap.tsx";
import { useCalm, useEvery, useNews, useRead, useTitle } from "../hooks.ts";
import { JsonView } from "../jsonview.tsx";
import { bindKeys } from "../keys.ts";
import { joined, stateOfRecent } from "../recent.tsx";
import { go, goBack, href, route } from "../router.ts";
import { may, now, seesAll, serverNow } from "../state.ts";
import { perDay, quantile } from "../summary.ts";
import { isFinal } from "../statuses.ts";
import type { Page, Schedule } from "../models.ts";
import type { Calendar, Job, LedgerAudit, Occurrence } from "../types.ts";
import { Badge, Card, Collection, Command, Empty, Facts, JobLink, Legend, Linked, Loading, Problem, Select, Text, Time } from "../ui.tsx";
import { scheduleCommand, scheduleHref, scheduleLabel, scheduleUrl } from "../whose.ts";
import { stateOf } from "./schedules.tsx";

const JOBS_READ = 100;
const OCCURRENCES_SHOWN = 25;

export function SchedulePage({ name, tenant }: { name: string; tenant: string | undefined }) {
  useTitle(name);
  const read = useRead<Schedule>(apiUrl(["schedules", name], { tenant }), { every: 15 * SECOND });
  const jobs = useRead<Page<Job>>(apiUrl(["jobs"], { schedule: name, tenant: tenant ?? (seesAll.value ? "default" : undefined), limit: JOBS_READ }));
  const schedule = read.data;
  const [shows, setShows] = useState<"edit" | "backfill" | null>(null);
  const [turn, setTurn] = useState(0);
  const again = useCalm(() => {
    read.again();
    jobs.again();
    setTurn((before) => before + 1);
  }, SECOND);
  useNews((news) => {
    if (news.some((one) => one.job.schedule === name && (schedule === null || one.job.tenant === schedule.tenant) && one.kind !== "progress")) again();
  });
  useLayoutEffect(() => bindKeys({ Escape: () => goBack("#/schedules") }), []);
  if (schedule === null) {
    if (read.status === 404) {
      return (
        <Empty title="Schedule not found">
          <p>None is named {visible(name)}. It may have been removed, or belong to another tenant.</p>
          <p>
            <a href="#/schedules">All schedules</a>
          </p>
        </Empty>
      );
    }
    return read.problem === null ? <Loading what="the schedule" /> : <Problem words={read.problem} again={read.again} />;
  }
  const zone = zoneOf(schedule.trigger);
  const canAct = may("operator");
  const set = (changed: Schedule): void => read.set(changed);
  return (
    <article>
      <nav class="crumbs" aria-label="Breadcrumbs">
        <a href="#/schedules">Schedules</a>
      </nav>
      <header class="page-head">
        <div>
          <h1>
            <Text of={schedule.name} most={100} /> <Badge state={stateOf(schedule, now.value)} />
          </h1>
          <p class="why">
            <Text of={inWords(schedule.trigger) ?? schedule.rule} /> <code>{visible(ruleText(schedule.trigger))}</code> {zone && <span class="faint">{zone}</span>}
          </p>
        </div>
        {canAct && (
          <div class="actions">
            <button type="button" class="main" onClick={() => void runNow(schedule)}>
              Run now
            </button>
            <button type="button" onClick={() => (schedule.paused ? void resumeSchedule(schedule, set) : pauseSchedule(schedule, set))}>
              {schedule.paused ? "Resume" : "Pause"}
            </button>
            <button type="button" onClick={() => setShows("edit")}>
              Change
            </button>
            <button type="button" onClick={() => setShows("backfill")}>
              Backfill
            </button>
            <button type="button" class="grave" onClick={() => removeSchedule(schedule)}>
              Remove
            </button>
          </div>
        )}
      </header>
      {schedule.attention && <Problem words={`It cannot be planned: ${schedule.attention}`} />}
      {schedule.pause && (
        <p class="hint tone-warn">
          Paused by <Text of={schedule.pause.author} most={60} /> <Time at={schedule.pause.since} />
          {schedule.pause.until && <> until <Time at={schedule.pause.until} zone={zone} ahead /></>}
          {schedule.pause.reason && <>: <Text of={schedule.pause.reason} /></>}
        </p>
      )}
      <div class="columns aside-first">
        <div>
          <Ledger schedule={schedule} zone={zone} turn={turn} />
          <Trend jobs={jobs.data?.items ?? []} expect={schedule.expect} />
          <Occurrences schedule={schedule} zone={zone} jobs={jobs.data?.items ?? []} turn={turn} />
        </div>
        <div>
          <Next schedule={schedule} zone={zone} />
          <AuditResult schedule={schedule} turn={turn} />
          <Card id="definition" title="Definition">
            <Facts
              rows={[
                ["Task", <a href={href(["jobs"], { type: schedule.task })}><Text of={schedule.task} most={80} /></a>],
                ["Overlap", schedule.overlap],
                ["Missed runs", schedule.missed],
                schedule.deadline ? ["Deadline", spanText(schedule.deadline)] : null,
                schedule.grace ? ["On time within", spanText(schedule.grace)] : null,
                schedule.expect ? ["Expected duration", spanText(schedule.expect)] : null,
                schedule.jitter && schedule.jitter !== "0s" ? ["Jitter", spanText(schedule.jitter)] : null,
                ["Attempts", schedule.max_attempts],
                schedule.backoff ? ["Back-off", schedule.backoff] : null,
                ["Queue", <a href={href(["jobs"], { queue: schedule.queue })}><Text of={schedule.queue} most={60} /></a>],
                schedule.priority ? ["Priority", schedule.priority] : null,
                ["Tenant", <Text of={schedule.tenant} most={60} />],
                schedule.tags.length ? ["Tags", <Text of={schedule.tags.join(", ")} />] : null,
                ["Declared by", schedule.owner ? <Text of={schedule.owner} most={60} /> : "hand"],
                ["Revision", schedule.revision],
                ["Created", <Time at={schedule.created_at} />],
                schedule.failing ? ["Failed in a row", schedule.failing] : null,
              ]}
            />
            <h3>Arguments</h3>
            <JsonView value={schedule.args} label="The arguments" />
            <Command line={scheduleCommand("show", schedule)} />
          </Card>
        </div>
      </div>
      {shows === "edit" && (
        <EditSchedule
          schedule={schedule}
          onClose={() => setShows(null)}
          onDone={(changed) => {
            setShows(null);
            set(changed);
          }}
        />
      )}
      {shows === "backfill" && <Backfill schedule={schedule} onClose={() => setShows(null)} onDone={again} />}
    </article>
  );
}

function Next({ schedule, zone }: { schedule: Schedule; zone: string | undefined }) {
  const items = schedule.next ?? [];
  const hasSeconds = items.some((one) => one.local.slice(17, 19) !== "00");
  return (
    <Card id="next" title="Next">
      {items.length === 0 && <p class="quiet">{schedule.trigger.kind === "after" ? "Its next run depends on when its job ends." : "No upcoming instants."}</p>}
      <ol class="coming">
        {items.map((one) => (
          <li key={one.instant}>
            <span>
              <span class="mono">{one.local.slice(0, hasSeconds ? 19 : 16).replace("T", " ")}</span> <span class="faint small-text">{zone ?? "UTC"}</span>
              {one.note && <div class="hint tone-warn">{visible(one.note)}</div>}
            </span>
            <Time at={one.instant} zone={zone} ahead />
          </li>
        ))}
      </ol>
    </Card>
  );
}

// --- the ledger

const LAST = "last 12 months";

/** A year of decisions: the last twelve months, or a year of the calendar. */
function Ledger({ schedule, zone, turn }: { schedule: Schedule; zone: string | undefined; turn: number }) {
  const [chosen, setChosen] = useState(LAST);
  const today = dateIn(now.value, zone);
  const thisYear = Number(today.slice(0, 4));
  const firstYear = Math.max(thisYear - 9, Number(schedule.created_at.slice(0, 4)));
  const years = Array.from({ length: thisYear - firstYear + 1 }, (_, place) => String(thisYear - place));
  const isLast = chosen === LAST;
  const address = (year: string): string => scheduleUrl(schedule, ["calendar"], { year });
  const latest = useRead<Calendar>(address(isLast ? String(thisYear) : chosen));
  // Months of the previous year are shown only for the last twelve months, and only if the schedule is that old.
  const before = useRead<Calendar>(isLast && firstYear < thisYear ? address(String(thisYear - 1)) : null);
  const calm = Math.floor(turn / 10); // Do not reload a year with every job.
  useEffect(() => {
    if (calm) latest.again();
  }, [calm]);
  const days = useMemo(() => perDay([...(before.data?.days ?? []), ...(latest.data?.days ?? [])]), [latest.data, before.data]);
  return (
    <Card
      id="ledger"
      title="Calendar"
      aside={
        <>
          <Legend keys={[["good", "fired"], ["warn", "skipped"], ["bad", "failed or missed"]]} />
          <Select label="Which year" isInline value={chosen} onValue={setChosen} options={[LAST, ...years].map((year) => [year])} />
        </>
      }
    >
      <Problem words={latest.problem} again={latest.again} />
      <HeatMap days={days} from={isLast ? "" : chosen} last={isLast ? today : `${chosen}-12-31`} />
      {(latest.data?.truncated || before.data?.truncated) && <p class="faint small-text">Too many decisions: older ones of the year are not counted here. The audit counts all.</p>}
    </Card>
  );
}

function Trend({ jobs, expect }: { jobs: readonly Job[]; expect: string | null }) {
  const shown = useMemo(() => {
    const ended = jobs.filter((job) => isFinal(job.status) && job.started_at && job.finished_at).reverse();
    const took = ended.map((job) => (instant(job.finished_at) - instant(job.started_at)) / SECOND);
    const low = quantile(took, 0.1);
    const high = quantile(took, 0.9);
    const bound = expect ? readDuration(expect) / SECOND : Number.NaN;
    const lines = [
      { label: "p10–p90", values: took.map(() => high), colour: "faint" },
      { label: "", values: took.map(() => low), colour: "faint" },
      { label: "took", values: took.map((value, place) => (ended[place]?.status === "COMPLETED" ? value : null)), colour: "accent", kind: "points" as const },
      { label: "failed", values: took.map((value, place) => (ended[place]?.status === "COMPLETED" ? null : value)), colour: "bad", kind: "points" as const },
      ...(Number.isNaN(bound) ? [] : [{ label: "expected at most", values: took.map(() => bound), colour: "warn" }]),
    ];
    return { at: ended.map((job) => instant(job.finished_at) / SECOND), lines, low, high, number: ended.length };
  }, [jobs, expect]);
  if (shown.number < 3) return null;
  const words = `Last ${counted(shown.number, "job")}: p10 ${duration(shown.low * SECOND)}, p90 ${duration(shown.high * SECOND)}.`;
  return (
    <Card id="trend" title="Job duration">
      <Chart title="Seconds" summary={words} at={shown.at} lines={shown.lines} unit="seconds" band={[1, 2]} />
      <p class="faint">{words}</p>
    </Card>
  );
}

function Occurrences({ schedule, zone, jobs, turn }: { schedule: Schedule; zone: string | undefined; jobs: readonly Job[]; turn: number }) {
  const { query } = route.value;
  const cursor = query["cursor"];
  const wanted = query["at"];
  // A link from a job opens the page of the ledger that ends with its occurrence.
  const before = wanted ? new Date(instant(wanted) + 1).toISOString() : undefined;
  const read = useRead<Page<Occurrence>>(scheduleUrl(schedule, ["runs"], { limit: OCCURRENCES_SHOWN, cursor, before }));
  useEffect(() => {
    if (turn && !cursor && !wanted) read.again();
  }, [turn]);
  const rows = useMemo(() => read.data && joined(read.data.items, jobs), [read.data, jobs]);
  return (
    <Collection
      id="occurrences"
      title="Occurrences"
      aside={(wanted || cursor) && <a href={scheduleHref(schedule)}>Newest</a>}
      before={<Problem words={read.problem} again={read.again} />}
      columns={[["Instant", "figure"], ["Outcome"], ["Why", "cell-words"], ["Job", "cell-job"]]}
      items={rows ?? undefined}
      empty={<p class="quiet">Nothing has been decided yet.</p>}
      row={(one) => ({
        key: `${one.instant} ${one.job_id ?? one.outcome}`,
        class: wanted && instant(wanted) === instant(one.instant) ? "selected" : "",
        cells: [
          <>
            <Time at={one.instant} zone={zone} />
            {one.until && <> to <Time at={one.until} zone={zone} /></>}
          </>,
          <>
            <Badge state={one.outcome} /> {one.count > 1 && `×${count(one.count)}`}
          </>,
          <Linked of={one.reason} most={160} />,
          one.job_id ? (
            <>
              <JobLink id={one.job_id} /> {one.status && <Badge state={stateOfRecent(one.outcome, one.status)} />}
            </>
          ) : (
            <span class="faint">–</span>
          ),
        ],
      })}
    >
      {read.data?.next_cursor && (
        <nav class="pager" aria-label="Older and newer">
          <button type="button" onClick={() => go(scheduleHref(schedule, { cursor: read.data?.next_cursor ?? undefined }))}>
            Older
          </button>
        </nav>
      )}
    </Collection>
  );
}

function AuditResult({ schedule, turn }: { schedule: Schedule; turn: number }) {
  const [days, setDays] = useState("1");
  const since = useMemo(() => new Date(serverNow() - Number(days) * DAY).toISOString(), [days, Math.floor(turn / 20)]);
  const audit = useRead<LedgerAudit>(apiUrl(["audit"], { schedule: schedule.name, tenant: seesAll.value ? schedule.tenant : undefined, since }));
  useEvery(60 * SECOND, audit.again);
  const found = audit.data;
  const findings = found ? [...found.gaps.map((one) => ({ ...one, kind: "missing" })), ...found.duplicates.map((one) => ({ ...one, kind: "twice" })), ...found.phantoms.map((one) => ({ ...one, kind: "not expected" }))] : [];
  return (
    <Card
      id="audit"
      title="Audit"
      aside={<Select label="Time range" isInline value={days} onValue={setDays} options={[["1", "last day"], ["7", "last 7 days"], ["30", "last 30 days"], ["365", "last year"]]} />}
    >
      <Problem words={audit.problem} again={audit.again} />
      {found && (
        <p class={found.ok ? "verdict tone-good" : "verdict tone-bad"}>
          <Badge state={found.ok ? "on" : "held"} word={found.ok ? "Complete" : "Incomplete"} /> {counted(found.expected, "instant")} expected, {count(found.recorded)} recorded
          {found.ok ? ": no gaps, no duplicates." : "."}
        </p>
      )}
      {findings.length > 0 && (
        <ul class="lines">
          {findings.slice(0, 20).map((one) => (
            <li key={`${one.kind} ${one.instant}`}>
              <Time at={one.instant} />
              <span>
                {one.kind}: <Text of={one.reason} most={120} />
              </span>
            </li>
          ))}
        </ul>
      )}
      <Command line={command(["audit"], { schedule: scheduleLabel(schedule), since })} />
    </Card>
  );
}
