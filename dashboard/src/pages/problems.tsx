/** Problems: what failed for good, by error; what takes too long; what is flagged; what could not be told. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { cancelJob, replayDelivery, settleLetters } from "../actions.tsx";
import { apiUrl, ask, wordsOf } from "../api.ts";
import { command } from "../cli.ts";
import { readDuration } from "../cron.ts";
import { clip, count, counted, duration, errorKind, instant, SECOND, visible } from "../format.ts";
import { useCalm, useNews, useRead, useTitle } from "../hooks.ts";
import { onReadAgain } from "../live.ts";
import { groupedByError, type Group } from "../merge.ts";
import { href } from "../router.ts";
import { may, now, stats } from "../state.ts";
import { boundFor, overdue, quantile } from "../summary.ts";
import type { Alert, Delivery, Job, Page, Schedule } from "../types.ts";
import { Badge, Card, Collection, Command, DO, Fold, Icon, JobLink, Problem, ScheduleLink, Text, Time } from "../ui.tsx";
import { whereTo } from "./now.tsx";

const LETTER_PAGES = 5;

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
          <Badge state="on" word="All good" /> Nothing needs you.
        </p>
      )}
      {others.length > 0 && (
        <Card id="faults" title="The machinery">
          <ul class="alerts">
            {others.map((alert) => (
              <li key={`${alert.code} ${alert.target ?? ""} ${alert.message}`}>
                <Icon shape="alarm" />
                <div class="alert-words">
                  <Text of={alert.message} most={400} />
                  <Command line={alert.cure} label="What helps" />
                </div>
                <a class="button small" href={whereTo(alert)}>
                  Look
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
  const [letters, setLetters] = useState<readonly Job[] | null>(null);
  const [isCut, setCut] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const read = async (): Promise<void> => {
    try {
      const found: Job[] = [];
      let cursor: string | undefined;
      for (let page = 0; page < LETTER_PAGES; page++) {
        const answer: Page<Job> = await ask<Page<Job>>(apiUrl(["dead"], { limit: 200, cursor }));
        found.push(...answer.items);
        cursor = answer.next_cursor ?? undefined;
        if (cursor === undefined) break;
      }
      setLetters(found);
      setCut(cursor !== undefined);
      setProblem(null);
    } catch (error) {
      setProblem(wordsOf(error));
    }
  };
  useEffect(() => {
    void read();
    return onReadAgain(() => void read());
  }, []);
  const again = useCalm(() => void read(), 2 * SECOND);
  useNews((news) => {
    if (news.some((one) => one.job.status === "FAILED" || one.job.status === "TIMED_OUT")) again();
  });
  const groups = useMemo(() => groupedByError(letters ?? [], errorKind), [letters]);
  const total = stats.value?.dead.total ?? letters?.length ?? 0;
  return (
    <Card id="letters" title="Dead letters" aside={<span class="faint">{letters ? counted(Math.max(total, letters.length), "job") : ""}</span>}>
      <Problem words={problem} again={() => void read()} />
      {letters?.length === 0 && <p class="quiet">No job has failed for good, or each was looked at.</p>}
      {isCut && <p class="faint">The newest {count(letters?.length ?? 0)} are shown.</p>}
      <ul class="groups">
        {groups.map((group) => (
          <LetterGroup key={group.tasks[0] + group.kind} group={group} after={() => void read()} />
        ))}
      </ul>
    </Card>
  );
}

function LetterGroup({ group, after }: { group: Group; after: () => void }) {
  const newest = group.jobs[0]!;
  const oldest = group.jobs.at(-1)!;
  return (
    <li>
      <span class="times">{count(group.jobs.length)}×</span>
      <div>
        <a href={href(["jobs"], { type: newest.type, status: newest.status })}>
          <strong>
            <Text of={newest.type} most={60} />
          </strong>
        </a>{" "}
        <span class="faint">
          newest <Time at={newest.finished_at} />
          {group.jobs.length > 1 && <>, oldest <Time at={oldest.finished_at} /></>}
        </span>
        <div class="mono small-text">
          <Text of={newest.error ? `${newest.error.type}: ${newest.error.message}` : newest.reason} most={300} />
        </div>
        <Fold title={counted(group.jobs.length, "job")}>
          {() => (
            <ul class="lines">
              {group.jobs.slice(0, 100).map((job) => (
                <li key={job.id}>
                  <JobLink id={job.id} />
                  <span>
                    {job.schedule && <ScheduleLink name={job.schedule} />} <Time at={job.finished_at} />
                  </span>
                </li>
              ))}
            </ul>
          )}
        </Fold>
      </div>
      {may("operator") && (
        <span class="group-do">
          <button type="button" class="small" onClick={() => settleLetters("retry", group.jobs, group.kind, after)} aria-label={`Retry ${group.jobs.length > 1 ? "all " : ""}${counted(group.jobs.length, "job")} of ${clip(newest.type, 40)}`}>
            Retry {group.jobs.length > 1 ? "all" : ""}
          </button>
          <button type="button" class="small ghost" onClick={() => settleLetters("drop", group.jobs, group.kind, after)} aria-label={`Drop ${counted(group.jobs.length, "job")} of ${clip(newest.type, 40)}`}>
            Drop
          </button>
        </span>
      )}
    </li>
  );
}

// --- what takes too long, what was lost

function LongRunning() {
  const running = useRead<Page<Job>>(apiUrl(["jobs"], { status: "RUNNING", limit: 200 }), { every: 10 * SECOND });
  const ended = useRead<Page<Job>>(apiUrl(["jobs"], { status: "COMPLETED", limit: 200 }), { every: 60 * SECOND });
  const names = [...new Set((running.data?.items ?? []).map((job) => job.schedule).filter((name): name is string => name !== null))].slice(0, 20);
  const [expected, setExpected] = useState<ReadonlyMap<string, number>>(new Map());
  useEffect(() => {
    let isLeft = false;
    void Promise.all(names.filter((name) => !expected.has(name)).map((name) => ask<Schedule>(apiUrl(["schedules", name])).then((one) => [name, one.expect ? readDuration(one.expect) : 0] as const, () => [name, 0] as const))).then(
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
  const found = overdue(running.data?.items ?? [], (job) => boundFor(job.schedule === null ? undefined : expected.get(job.schedule), usual.get(job.type)), now.value);
  return (
    <Card id="long" title="Longer than they should">
      <Problem words={running.problem} again={running.again} />
      {running.data && found.length === 0 && <p class="quiet">Every job that runs is within what is usual for its task.</p>}
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
      {retrying.data && found.length === 0 && <p class="quiet">No job has lost its worker lately.</p>}
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
      {alerts.data && found.length === 0 && <p class="quiet">Every schedule can be planned, and none fails again and again.</p>}
      <ul class="lines">
        {found.map((alert) => (
          <li key={alert.message}>
            <span>
              {alert.target ? <ScheduleLink name={alert.target} /> : null} <Badge state={alert.code === "schedule_held" ? "held" : "failing"} />
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
      columns={[["To", "cell-words"], ["What"], ["Tries", "figure"], ["Last answer"], DO]}
      items={read.data?.items}
      empty={<p class="quiet">Every message was delivered, or is on its way.</p>}
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
