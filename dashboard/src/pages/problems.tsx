/** Problems: dead letters by error, slow jobs, flagged schedules, undelivered webhooks. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { cancelJob, replayDelivery, settleLetters } from "../actions.tsx";
import { apiUrl, ask } from "../api.ts";
import { command } from "../cli.ts";
import { readDuration } from "../cron.ts";
import { clip, count, counted, duration, instant, SECOND, visible } from "../format.ts";
import { useCalm, useNews, useRead, useTitle } from "../hooks.ts";
import { href } from "../router.ts";
import { may, now } from "../state.ts";
import { boundFor, overdue, quantile } from "../summary.ts";
import type { FailureGroup, Failures, Page, Schedule } from "../models.ts";
import type { Alert, Delivery, Job } from "../types.ts";
import { Badge, Card, Collection, Command, DO, Fold, Icon, JobLink, Problem, ScheduleLink, Text, Time } from "../ui.tsx";
import { scheduleUrl } from "../whose.ts";
import { whereTo } from "./now.tsx";

export function ProblemsPage() {
  useTitle("Problems");
  const alerts = useRead<Page<Alert>>(apiUrl(["alerts"], { limit: 200 }), { every: 10 * SECOND });
  const others = (alerts.data?.items ?? []).filter((alert) => !["dead_letters", "undelivered", "schedule_failing", "schedule_held"].includes(alert.code));
  const isFine = alerts.data !== null && alerts.data.items.length === 0;
  return (
    <>
      <h1>Problems</h1>
      <Problem words={alerts.problem} again={alerts.again} />
      {isFine && (
        <p class="verdict tone-good">
          <Badge state="on" word="All good" /> Nothing needs attention.
        </p>
      )}
      {others.length > 0 && (
        <Card id="faults" title="System alerts">
          <ul class="alerts">
            {others.map((alert) => (
              <li key={`${alert.code} ${alert.target ?? ""} ${alert.message}`}>
                <Icon shape="alarm" />
                <div class="alert-words">
                  <Text of={alert.message} most={400} />
                  <Command line={alert.cure} label="Suggested fix" />
                </div>
                <a class="button small" href={whereTo(alert)}>
                  Review
                </a>
              </li>
            ))}
          </ul>
        </Card>
      )}
      <Letters />
      <div class="columns even">
        <LongRunning />
        <Flagged />
        <LostLeases />
        {may("admin") && <Undelivered />}
      </div>
    </>
  );
}

// --- dead letters

function Letters() {
  const read = useRead<Failures>(apiUrl(["failures"]), { every: 30 * SECOND });
  const again = useCalm(read.again, 2 * SECOND);
  useNews((news) => {
    if (news.some((one) => one.job.status === "FAILED" || one.job.status === "TIMED_OUT")) again();
  });
  const found = read.data;
  const rest = found ? found.groups - found.items.length : 0;
  return (
    <Card id="letters" title="Dead letters" aside={<span class="faint">{found ? `${found.is_exact ? "" : "at least "}${counted(found.total, "job")}` : ""}</span>}>
      <Problem words={read.problem} again={read.again} />
      {found?.total === 0 && <p class="quiet">No job has failed for good, or each was reviewed.</p>}
      {found && !found.is_exact && <p class="faint">The newest {count(found.total)} are counted here.</p>}
      <ul class="groups">
        {found?.items.map((group) => (
          <LetterGroup key={`${group.type}\u0000${group.error}`} group={group} after={read.again} />
        ))}
      </ul>
      {rest > 0 && <p class="faint">{counted(rest, "more kind of error", "more kinds of errors")}, each less frequent.</p>}
      {(found?.total ?? 0) > 0 && <Command line={command(["dead", "list"], { "by-error": true })} />}
    </Card>
  );
}

function LetterGroup({ group, after }: { group: FailureGroup; after: () => void }) {
  return (
    <li>
      <span class="times">{count(group.count)}×</span>
      <div>
        <a href={href(["jobs"], { type: group.type, status: "FAILED" })}>
          <strong>
            <Text of={group.type} most={60} />
          </strong>
        </a>{" "}
        <span class="faint">
          newest <Time at={group.newest_at} />
          {group.count > 1 && <>, oldest <Time at={group.oldest_at} /></>}
        </span>
        <div class="mono small-text">
          <Text of={group.count > 1 ? group.error : group.example} most={320} />
        </div>
        <Fold title={counted(group.count, "job")}>{() => <LettersOf group={group} />}</Fold>
      </div>
      {may("operator") && (
        <span class="group-do">
          <button type="button" class="small" onClick={() => void settleLetters("retry", group, after)} aria-label={`Retry ${group.count > 1 ? "all " : ""}${counted(group.count, "job")} of ${clip(group.type, 40)}`}>
            Retry {group.count > 1 ? "all" : ""}
          </button>
          <button type="button" class="small ghost" onClick={() => void settleLetters("drop", group, after)} aria-label={`Drop ${counted(group.count, "job")} of ${clip(group.type, 40)}`}>
            Drop
          </button>
        </span>
      )}
    </li>
  );
}

const LETTERS_SHOWN = 100;

function LettersOf({ group }: { group: FailureGroup }) {
  const read = useRead<Page<Job>>(apiUrl(["dead"], { type: group.type, error: group.error, limit: LETTERS_SHOWN }));
  useEffect(() => read.again(), [group.count, group.newest]);
  return (
    <>
      <Problem words={read.problem} again={read.again} />
      <ul class="lines scrolls" tabIndex={0} aria-label={`Jobs of ${clip(group.type, 40)}`}>
        {read.data?.items.map((job) => (
          <li key={job.id}>
            <span>
              <JobLink id={job.id} /> {group.error.includes("…") && <span class="small-text faint"><Text of={job.error?.message ?? job.reason} most={120} /></span>}
            </span>
            <span>
              {job.schedule && <ScheduleLink name={job.schedule} tenant={job.tenant} />} <Time at={job.finished_at} />
            </span>
          </li>
        ))}
      </ul>
      {read.data?.next_cursor && <p class="faint">The newest {LETTERS_SHOWN} are shown.</p>}
      <Command line={command(["dead", "list"], { task: group.type, error: group.error })} />
    </>
  );
}

// --- slow jobs, lost workers

const scheduleOf = (job: Job): string => scheduleUrl({ name: job.schedule ?? "", tenant: job.tenant });

function LongRunning() {
  const running = useRead<Page<Job>>(apiUrl(["jobs"], { status: "RUNNING", limit: 200 }), { every: 10 * SECOND });
  const ended = useRead<Page<Job>>(apiUrl(["jobs"], { status: "COMPLETED", limit: 200 }), { every: 60 * SECOND });
  // Keyed by address: names alone are not unique.
  const names = [...new Set((running.data?.items ?? []).filter((job) => job.schedule !== null).map(scheduleOf))].slice(0, 20);
  const [expected, setExpected] = useState<ReadonlyMap<string, number>>(new Map());
  useEffect(() => {
    let isLeft = false;
    void Promise.all(names.filter((name) => !expected.has(name)).map((name) => ask<Schedule>(name).then((one) => [name, one.expect ? readDuration(one.expect) : 0] as const, () => [name, 0] as const))).then(
      (found) => !isLeft && found.length > 0 && setExpected((before) => new Map([...before, ...found])),
    );
    return () => {
      isLeft = true;
    };
  }, [names.join("\n")]);
  const usual = useMemo(() => {
    const times = new Map<string, number[]>();
    for (const job of ended.data?.items ?? []) {
      const took = instant(job.finished_at) - instant(job.started_at);
      if (!Number.isNaN(took)) times.set(job.type, [...(times.get(job.type) ?? []), took]);
    }
    return new Map([...times].filter(([, values]) => values.length >= 3).map(([task, values]) => [task, quantile(values, 0.5)]));
  }, [ended.data]);
  const found = overdue(running.data?.items ?? [], (job) => boundFor(job.schedule === null ? undefined : expected.get(scheduleOf(job)), usual.get(job.type)), now.value);
  return (
    <Card id="long" title="Slow jobs">
      <Problem words={running.problem} again={running.again} />
      {running.data && found.length === 0 && <p class="quiet">No running job exceeds its usual duration.</p>}
      <ul class="lines">
        {found.slice(0, 20).map(({ job, ran, words }) => (
          <li key={job.id}>
            <span>
              <JobLink id={job.id}>
                <Text of={job.type} most={60} />
              </JobLink>{" "}
              runs for {duration(ran)}
              {words && <span class="faint"> ({words})</span>}
              <span class="faint">
                {" "}
                · last heard <Time at={job.updated_at} />
              </span>
            </span>
            {may("operator") && (
              <button type="button" class="small" onClick={() => cancelJob(job, running.again)}>
                Cancel
              </button>
            )}
          </li>
        ))}
      </ul>
    </Card>
  );
}

function LostLeases() {
  const retrying = useRead<Page<Job>>(apiUrl(["jobs"], { q: "worker lost", limit: 50 }), { every: 15 * SECOND });
  const found = (retrying.data?.items ?? []).filter((job) => job.reason.includes("worker lost"));
  return (
    <Card id="lost" title="Lost workers">
      <Problem words={retrying.problem} again={retrying.again} />
      {retrying.data && found.length === 0 && <p class="quiet">No job has lost its worker recently.</p>}
      <ul class="lines">
        {found.slice(0, 20).map((job) => (
          <li key={job.id}>
            <span>
              <JobLink id={job.id}>
                <Text of={job.type} most={60} />
              </JobLink>{" "}
              <Badge state={job.status} /> <Text of={job.reason} most={120} />
            </span>
            <Time at={job.updated_at} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Flagged() {
  const alerts = useRead<Page<Alert>>(apiUrl(["alerts"], { limit: 200 }), { every: 10 * SECOND });
  const found = (alerts.data?.items ?? []).filter((alert) => alert.code === "schedule_failing" || alert.code === "schedule_held");
  return (
    <Card id="flagged" title="Flagged schedules">
      {alerts.data && found.length === 0 && <p class="quiet">Every schedule can be planned, and none fails repeatedly.</p>}
      <ul class="lines">
        {found.map((alert) => (
          <li key={alert.message}>
            <span>
              {alert.target ? <ScheduleLink name={alert.target} tenant={alert.tenant} /> : null} <Badge state={alert.code === "schedule_held" ? "held" : "failing"} />
              <div class="small-text faint">
                <Text of={alert.message} most={200} />
              </div>
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Undelivered() {
  const read = useRead<Page<Delivery>>(apiUrl(["deliveries"], { status: "FAILED", limit: 50 }), { every: 30 * SECOND });
  return (
    <Collection
      id="undelivered"
      title="Undelivered webhooks"
      before={<Problem words={read.problem} again={read.again} />}
      columns={[["URL", "cell-words"], ["Event"], ["Attempts", "figure"], ["Last response"], DO]}
      items={read.data?.items}
      empty={<p class="quiet">Every message was delivered or is pending.</p>}
      row={(delivery) => {
        const last = delivery.outcomes.at(-1);
        return {
          key: delivery.id,
          cells: [
            <Text of={delivery.url} most={80} />,
            <>
              {visible(delivery.event)} {delivery.job && <JobLink id={delivery.job} />}
            </>,
            delivery.tries,
            last ? <><Text of={last.error ?? String(last.code ?? "")} most={100} /> <Time at={last.at} /></> : "–",
            <button type="button" class="small" onClick={() => void replayDelivery(delivery, read.again)}>
              Send again
            </button>,
          ],
        };
      }}
    >
      <Command line={command(["webhooks", "deliveries"], { status: "FAILED" })} />
    </Collection>
  );
}
