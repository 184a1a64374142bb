/** Now: the health in words, then alerts, running jobs and statistics. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { apiUrl } from "../api.ts";
import { Chart } from "../chart.tsx";
import { command } from "../cli.ts";
import { clip, count, counted, duration, HOUR, instant, MINUTE, percent, rate, SECOND, tries } from "../format.ts";
import { useCalm, useEvery, useNews, useRead, useTitle } from "../hooks.ts";
import { mergedList } from "../merge.ts";
import { href } from "../router.ts";
import { may, now, serverNow, stats, statsProblem } from "../state.ts";
import { isFinal } from "../statuses.ts";
import { sinceFirst, spansOf, windowFor } from "../summary.ts";
import type { FailureGroup, Failures, JobNews, Page } from "../models.ts";
import type { Alert, Job, Series, Stats } from "../types.ts";
import { Badge, Card, Command, Empty, Fold, Icon, JobLink, Loading, Problem, Progress, ScheduleLink, Select, Since, Text, Time } from "../ui.tsx";
import { retryJob } from "../actions.tsx";
import { scheduleHref } from "../whose.ts";

const RUNNING_SHOWN = 20;
const STAYS_MS = 4_000;
const FAILED_SHOWN = 6;

export function NowPage() {
  useTitle("");
  const figures = stats.value;
  if (figures === null) return statsProblem.value === null ? <Loading what="how things are" /> : <Problem words={statsProblem.value} />;
  return (
    <>
      <h1 class="offscreen">Now</h1>
      <Problem words={statsProblem.value} />
      <Health figures={figures} />
      <div class="columns">
        <div>
          <Running figures={figures} />
          <Charts />
        </div>
        <div>
          <Coming figures={figures} />
          <Waiting figures={figures} />
          <Failed />
        </div>
      </div>
    </>
  );
}

// --- health

function Health({ figures }: { figures: Stats }) {
  const alerts = useRead<Page<Alert>>(apiUrl(["alerts"], { limit: 20 }), { every: 10 * SECOND });
  const found = alerts.data?.items ?? [];
  const isNew = figures.schedules.total === 0 && Object.values(figures.jobs).every((number) => !number) && Object.values(figures.last_hour).every((number, place) => place > 3 || !number);
  return (
    <section class="health" aria-labelledby="health-title">
      <h2 id="health-title" class={found.length ? "needs" : "fine"}>
        <Icon shape={found.length ? "alarm" : "check"} />
        {found.length ? `${counted(found.length, "item needs", "items need")} attention` : "All good"}
      </h2>
      <p class="lede">{sentenceOf(figures)}</p>
      {found.length > 0 && (
        <ul class="alerts">
          {found.slice(0, 6).map((alert) => (
            <li key={`${alert.code} ${alert.target ?? ""} ${alert.message}`}>
              <Icon shape="alarm" />
              <span class="alert-words">
                <Text of={alert.message} most={220} />
              </span>
              <a class="button small" href={whereTo(alert)}>
                Review
              </a>
            </li>
          ))}
          {found.length > 6 && (
            <li>
              <a href="#/problems">{counted(found.length - 6, "more", "more")}</a>
            </li>
          )}
        </ul>
      )}
      {isNew && <FirstSteps />}
      <dl class="signs">
        <Sign name="Store" words={figures.store ? `${figures.store.kind} responds in ${figures.store.latency_ms < 1 ? "under 1" : Math.round(figures.store.latency_ms)} ms` : "responds"} isGood />
        {figures.leader !== undefined && <Sign name="Leader" words={figures.leader ? `${figures.leader.name}, term ${figures.leader.token}` : "none"} isGood={figures.leader !== null || figures.schedules.total === 0} />}
        {figures.workers !== undefined && <Sign name="Workers" words={workersWords(figures)} isGood={figures.workers.length > 0} />}
        <Sign
          name="Undecided"
          words={figures.oldest_undecided_seconds > 0.5 ? `oldest instant ${duration(figures.oldest_undecided_seconds * SECOND)}` : "nothing is overdue"}
          isGood={figures.oldest_undecided_seconds <= 10}
        />
        <Sign name="Last hour" words={`${count(figures.last_hour.COMPLETED)} completed, ${percent(figures.last_hour.failure_rate)} failed`} isGood={figures.last_hour.failure_rate < 0.05} />
      </dl>
    </section>
  );
}

function Sign({ name, words, isGood }: { name: string; words: string; isGood: boolean }) {
  return (
    <div class={isGood ? "tone-good" : "tone-bad"}>
      <dt>
        <Icon shape={isGood ? "check" : "alarm"} />
        {name}
      </dt>
      <dd>
        <Text of={words} most={80} />
      </dd>
    </div>
  );
}

function workersWords(figures: Stats): string {
  const workers = figures.workers ?? [];
  if (!workers.length) return "none is alive";
  const slots = workers.reduce((sum, worker) => sum + worker.slots, 0);
  const running = workers.reduce((sum, worker) => sum + worker.running, 0);
  const draining = workers.filter((worker) => worker.draining).length;
  return `${workers.length} alive, ${running} of ${slots} busy${draining ? `, ${draining} draining` : ""}`;
}

function sentenceOf(figures: Stats): string {
  const { total, late, paused } = figures.schedules;
  const schedules = total === 0 ? "No schedules yet" : late ? `${counted(late, "schedule is", "schedules are")} late` : `All ${counted(total, "schedule")} on time`;
  const parts = [schedules + (paused ? ` (${paused} paused)` : "")];
  parts.push(figures.jobs.RUNNING ? `${count(figures.jobs.RUNNING)} running` : "nothing runs");
  const pending = figures.jobs.PENDING ?? 0;
  if (pending) parts.push(`${count(pending)} waiting, the oldest for ${duration(figures.oldest_pending_seconds * SECOND)}`);
  if (figures.jobs.RETRYING) parts.push(`${count(figures.jobs.RETRYING)} retrying`);
  return `${parts.join(" · ")}.`;
}

/** Return the page that shows the cause of an alert. */
export function whereTo(alert: Alert): string {
  switch (alert.code) {
    case "dead_letters":
    case "undelivered":
      return "#/problems";
    case "schedule_held":
    case "schedule_failing":
      return alert.target ? scheduleHref({ name: alert.target, tenant: alert.tenant }) : "#/schedules";
    case "undecided":
      return "#/schedules";
    case "tenant_waits":
      return alert.target ? href(["tenants", alert.target]) : "#/tenants";
    default:
      return "#/queues";
  }
}

function FirstSteps() {
  return (
    <Empty title="Nothing has run yet">
      <p>Write a task into jobs.py, start it, and enqueue its first job:</p>
      <pre class="sample">{`from headway import Headway

app = Headway()

@app.task
def hello(name: str = "you"):
    return f"hello {name}"`}</pre>
      <Command line="headway dev jobs:app" />
      <Command line={command(["enqueue", "hello"], { watch: true })} />
    </Empty>
  );
}

// --- running jobs

function Running({ figures }: { figures: Stats }) {
  const read = useRead<Page<Job>>(apiUrl(["jobs"], { status: "RUNNING", limit: RUNNING_SHOWN }));
  const [jobs, setJobs] = useState<readonly (JobNews & { leftAt?: number })[]>([]);
  useEffect(() => {
    if (read.data) setJobs(read.data.items);
  }, [read.data]);
  useNews((news) => {
    const told = news.map((one) => one.job);
    setJobs((before) => {
      const at = serverNow();
      let after: readonly (JobNews & { leftAt?: number })[] = mergedList(before, told);
      const known = new Set(after.map((job) => job.id));
      const begun = new Map(told.filter((job) => job.status === "RUNNING" && !known.has(job.id)).map((job) => [job.id, job]));
      if (begun.size) after = [...after, ...begun.values()];
      // A finished job stays for a moment, so that its end is seen; its replacement comes at the bottom.
      after = after.map((job) => (job.status !== "RUNNING" && job.leftAt === undefined ? { ...job, leftAt: at } : job));
      return after.filter((job) => job.leftAt === undefined || at - job.leftAt < STAYS_MS).slice(0, RUNNING_SHOWN * 2);
    });
  });
  useEvery(2 * SECOND, () => setJobs((before) => (before.some((job) => job.leftAt !== undefined && serverNow() - job.leftAt >= STAYS_MS) ? before.filter((job) => job.leftAt === undefined || serverNow() - job.leftAt < STAYS_MS) : before)));
  const shown = jobs.slice(0, RUNNING_SHOWN);
  const total = Math.max(figures.jobs.RUNNING ?? 0, shown.filter((job) => job.status === "RUNNING").length);
  return (
    <Card id="running" title="Running" aside={total > 0 && <a href={href(["jobs"], { status: "RUNNING" })}>{count(total)} total</a>}>
      <Problem words={read.problem} again={read.again} />
      {shown.length === 0 && !read.isReading && (
        <p class="quiet">
          Nothing runs at the moment. {figures.schedules.next_at ? "The next instant is on the right." : ""}
        </p>
      )}
      <ul class="running">
        {shown.map((job) => (
          <li key={job.id} class={job.leftAt === undefined ? "" : "left"}>
            <div class="running-head">
              <JobLink id={job.id}>
                <strong>
                  <Text of={job.type} most={60} />
                </strong>
              </JobLink>
              {job.schedule && (
                <span class="faint">
                  of <ScheduleLink name={job.schedule} tenant={job.tenant} />
                </span>
              )}
              {job.attempts > 1 && <span class="faint">attempt {tries(job)}</span>}
              <span class="push faint">{isFinal(job.status) || job.status !== "RUNNING" ? <Badge state={job.status} /> : <Since at={job.started_at} />}</span>
            </div>
            <Progress job={job} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

// --- coming runs, pending jobs

function Coming({ figures }: { figures: Stats }) {
  const coming = figures.schedules.coming.slice(0, 8);
  const at = now.value;
  const length = windowFor(coming.map((one) => instant(one.next_at) - at));
  return (
    <Card id="coming" title="Next" aside={figures.schedules.total > 0 && <a href="#/schedules">{counted(figures.schedules.total, "schedule")}</a>}>
      {coming.length === 0 ? (
        <div class="quiet">
          <p>{figures.schedules.total ? "No upcoming instants." : "No schedules yet. Create one:"}</p>
          {figures.schedules.total === 0 && <Command line={command(["schedules", "put", "daily-report"], { task: "report", cron: "0 6 * * *" })} />}
        </div>
      ) : (
        <>
          <div class="timeline" aria-hidden="true">
            {coming.map((one) => {
              const away = (instant(one.next_at) - at) / length;
              return away >= 0 && away <= 1 ? <i key={`${one.tenant}\u0000${one.name}`} style={{ "--at": String(away) }} /> : null;
            })}
            <span>now</span>
            <span>{duration(length)}</span>
          </div>
          <ol class="coming">
            {coming.map((one) => (
              <li key={`${one.tenant}\u0000${one.name}`}>
                <ScheduleLink name={one.name} tenant={one.tenant} />
                <Time at={one.next_at} ahead />
              </li>
            ))}
          </ol>
        </>
      )}
    </Card>
  );
}

function Waiting({ figures }: { figures: Stats }) {
  const queues = figures.queues.filter((queue) => queue.pending > 0 || queue.paused);
  const rest = (["SCHEDULED", "RETRYING", "BLOCKED"] as const).filter((status) => figures.jobs[status]);
  if (!queues.length && !rest.length) return null;
  return (
    <Card id="waiting" title="Waiting" aside={<a href="#/queues">Queues</a>}>
      <ul class="lines">
        {queues.slice(0, 6).map((queue) => (
          <li key={queue.name}>
            <a href={href(["jobs"], { status: "PENDING", queue: queue.name })}>
              <Text of={queue.name} most={40} />
            </a>
            <span>
              {queue.paused && <Badge state="paused" />} {counted(queue.pending, "job")}
              {queue.pending > 0 && `, oldest ${duration(queue.oldest_age_seconds * SECOND)}`}
            </span>
          </li>
        ))}
        {rest.map((status) => (
          <li key={status}>
            <a href={href(["jobs"], { status })}>
              <Badge state={status} />
            </a>
            <span>{counted(figures.jobs[status] ?? 0, "job")}</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

// --- failures

function Failed() {
  // The last hour, but the URL changes only once a minute.
  const minute = Math.floor(now.value / MINUTE);
  const finished_after = useMemo(() => new Date(minute * MINUTE - HOUR).toISOString(), [minute]);
  const read = useRead<Failures>(apiUrl(["failures"], { finished_after }), { every: 30 * SECOND, keeps: true });
  const again = useCalm(read.again, 2 * SECOND);
  useNews((news) => {
    if (news.some((one) => one.job.status === "FAILED" || one.job.status === "TIMED_OUT")) again();
  });
  const found = read.data;
  const groups = found?.items ?? [];
  const more = (found?.groups ?? 0) - FAILED_SHOWN;
  return (
    <Card
      id="failures"
      title="Failed in the last hour"
      aside={groups.length > 0 && <a href={href(["jobs"], { status: "FAILED", ended: "1h" })}>{`${found?.is_exact ? "" : "at least "}${counted(found?.total ?? 0, "job")}`}</a>}
    >
      <Problem words={read.problem} again={read.again} />
      {found?.total === 0 && <p class="quiet">Nothing has failed.</p>}
      <FailedGroups groups={groups.slice(0, FAILED_SHOWN)} />
      {more > 0 && <Fold title={counted(more, "more kind of error", "more kinds of errors")}>{() => <FailedGroups groups={groups.slice(FAILED_SHOWN)} />}</Fold>}
    </Card>
  );
}

function FailedGroups({ groups }: { groups: readonly FailureGroup[] }) {
  return (
    <ul class="groups">
      {groups.map((group) => (
        <li key={`${group.type}\u0000${group.error}`}>
          <span class="times">{count(group.count)}×</span>
          <div>
            <JobLink id={group.newest}>
              <Text of={group.type} most={60} />
            </JobLink>{" "}
            <Time at={group.newest_at} />
            <div class="mono small-text">
              <Text of={group.count > 1 ? group.error : group.example} most={160} />
            </div>
          </div>
          {may("operator") && (
            <button type="button" class="small" onClick={() => void retryJob({ id: group.newest }, true)} aria-label={`Retry the newest job of ${clip(group.type, 40)}`}>
              Retry
            </button>
          )}
        </li>
      ))}
    </ul>
  );
}

// --- charts

const WINDOWS: readonly (readonly [string, string])[] = [
  ["1h", "Last hour"],
  ["6h", "Last 6 hours"],
  ["24h", "Last day"],
];

function Charts() {
  const [window, setWindow] = useState("1h");
  const read = useRead<Series>(apiUrl(["stats", "series"], { window }), { every: 10 * SECOND });
  const series = read.data;
  const spans = useMemo(() => spansOf(sinceFirst(series?.points ?? [])), [series]);
  const counts = useMemo(
    () => [
      { label: "completed", values: spans.ended, colour: "good", kind: "bars" as const },
      { label: "failed", values: spans.failed, colour: "bad", kind: "bars" as const },
    ],
    [spans],
  );
  const times = useMemo(
    () => [
      { label: "median", values: spans.usual, colour: "accent" },
      { label: "p95", values: spans.slow, colour: "faint" },
    ],
    [spans],
  );
  if (series === null) return <Problem words={read.problem} again={read.again} />;
  const ended = spans.completedInAll + spans.failedInAll;
  const share = percent(ended ? spans.failedInAll / ended : 0);
  const last = spans.usual.filter((value) => value !== null).at(-1);
  return (
    <Card
      id="charts"
      title="Ended"
      aside={<Select label="Time range" isInline value={window} onValue={setWindow} options={WINDOWS} />}
    >
      <Problem words={read.problem} again={read.again} />
      {ended === 0 ? (
        <p class="quiet">No job has ended in this time.</p>
      ) : (
        <>
          <p class="faint">
            {count(ended)} ended{series.truncated && ", the newest of more"}, {rate(ended / (spans.at.length * series.step_seconds))}, {share} failed.
          </p>
          <Chart title={`Jobs per ${duration(series.step_seconds * SECOND)}`} summary={`${count(spans.completedInAll)} completed, ${count(spans.failedInAll)} failed, ${share}.`} at={spans.at} lines={counts} unit="count" />
          <Chart title="Duration" summary={last ? `Latest median: ${duration(last * SECOND)}.` : ""} at={spans.at} lines={times} unit="seconds" />
        </>
      )}
    </Card>
  );
}
