/** Job: its options, the explanation of its status, progress, attempts and log. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { cancelJob, retryJob } from "../actions.tsx";
import { apiUrl } from "../api.ts";
import { Attempts } from "../attempts.tsx";
import { command } from "../cli.ts";
import { writeExact } from "../exact.ts";
import { clip, duration, instant, safeUrl, SECOND, shortId, tries, visible } from "../format.ts";
import { useCalm, useEvery, useNews, useRead, useTitle } from "../hooks.ts";
import { otherOptions } from "../joboptions.ts";
import { JsonView } from "../jsonview.tsx";
import { bindKeys } from "../keys.ts";
import { Log } from "../log.tsx";
import { merged } from "../merge.ts";
import { RunAgain } from "../runagain.tsx";
import { goBack, href } from "../router.ts";
import { announces, may, stats } from "../state.ts";
import { isFinal } from "../statuses.ts";
import { framesOf } from "../trace.ts";
import type { Page } from "../models.ts";
import type { Attempt, Failure, HistoryEntry, Job, Why } from "../types.ts";
import { Badge, Card, Command, Copy, Empty, Facts, Fold, Icon, JobLink, LimitLink, Linked, Loading, Problem, Progress, progressWords, ScheduleLink, Since, Table, Text, Time } from "../ui.tsx";
import { scheduleHref } from "../whose.ts";

const ANNOUNCE_MS = 10 * SECOND;

export function JobPage({ id }: { id: string }) {
  const read = useRead<Job>(apiUrl(["jobs", id]));
  const attempts = useRead<Page<Attempt>>(apiUrl(["jobs", id, "attempts"]));
  const [job, setJob] = useState<Job | null>(null);
  const [isEditing, setEditing] = useState(false);
  const [asksWhy, setAsksWhy] = useState(false);
  useTitle(job ? `${job.type} ${shortId(id)}` : "Job");
  useEffect(() => {
    if (read.data) setJob(read.data);
  }, [read.data]);
  const again = useCalm(() => (read.again(), attempts.again()), 100);
  useNews((news) => {
    const own = news.filter((one) => one.job.id === id);
    if (!own.length) return;
    setJob((before) => before && own.reduce((known, one) => merged(known, one.job) ?? known, before));
    // The stream has status and progress; arguments and result are loaded.
    if (own.some((one) => one.kind !== "progress")) again();
  });
  // The explanation of a waiting job depends on its context, which the stream does not have.
  useEvery(job !== null && !isFinal(job.status) && job.status !== "RUNNING" ? 5 * SECOND : undefined, read.again);
  useLayoutEffect(() =>
    bindKeys({
      R: () => job && may("operator") && isFinal(job.status) && void retryJob(job, true),
      C: () => job && may("operator") && !isFinal(job.status) && cancelJob(job, again),
      w: () => setAsksWhy(true),
      Escape: () => (asksWhy ? setAsksWhy(false) : goBack("#/jobs")),
    }),
  );

  if (job === null) {
    if (read.status === 404) return <NoSuchJob id={id} />;
    return read.problem === null ? <Loading what="the job" /> : <Problem words={read.problem} again={read.again} />;
  }
  const canAct = may("operator");
  const isOver = isFinal(job.status);
  return (
    <article class="job">
      <nav class="crumbs" aria-label="Breadcrumbs">
        <a href="#/jobs">Jobs</a> / <a href={href(["jobs"], { type: job.type })}><Text of={job.type} most={60} /></a>
      </nav>
      <header class="page-head">
        <div>
          <h1>
            <Text of={job.type} most={80} /> <Badge state={job.status} />
            {job.cancel_requested_at && !isOver && <Badge state="draining" word="Asked to stop" />}
          </h1>
          <p class="mono faint id">
            {job.id} <Copy text={job.id} what="The id" />
          </p>
        </div>
        {canAct && (
          <div class="actions">
            {!isOver && (
              <button type="button" class="grave" onClick={() => cancelJob(job, again)} disabled={job.cancel_requested_at !== null}>
                Cancel
              </button>
            )}
            {(isOver || job.status === "BLOCKED") && (
              <button type="button" class="main" onClick={() => void retryJob(job, true)}>
                Retry
              </button>
            )}
            <button type="button" onClick={() => setEditing(true)}>
              Run again with other arguments
            </button>
          </div>
        )}
      </header>
      <p class="why">
        {job.status === "RUNNING" ? <Where job={job} /> : <Linked of={job.why} most={600} />}{" "}
        <button type="button" class="small ghost" aria-expanded={asksWhy} onClick={() => setAsksWhy(!asksWhy)}>
          Why?
        </button>
      </p>
      {asksWhy && <Evidence id={id} version={job.version} />}
      {(job.status === "RUNNING" || job.detail) && <Course job={job} />}
      <Announcer job={job} />
      <div class="columns">
        <div>
          {job.error && <Failed error={job.error} status={job.status} />}
          <Log id={id} isOver={isOver} />
          <Attempts job={job} attempts={attempts.data?.items ?? []} />
          <History id={id} version={job.version} />
        </div>
        <div>
          <Result job={job} />
          <Card id="arguments" title="Arguments">
            <JsonView value={job.args} label="The arguments" />
          </Card>
          <About job={job} />
          <Card title="In a terminal">
            <Command line={command(["jobs", isOver ? "show" : "watch", job.id])} />
            {canAct && <Command line={command(["jobs", isOver ? "retry" : "cancel", job.id])} />}
          </Card>
        </div>
      </div>
      {isEditing && <RunAgain job={job} onClose={() => setEditing(false)} />}
    </article>
  );
}

/** Where it runs, and for how long; its progress is below. */
function Where({ job }: { job: Job }) {
  const node = stats.value?.nodes?.find((one) => one.id === job.node);
  return (
    <>
      Running {node && <>on <Text of={node.name} most={60} /> </>}for <Since at={job.started_at} />
      {job.attempts > 1 && `, attempt ${tries(job)}`}
      {job.cancel_requested_at && <>; asked to stop <Time at={job.cancel_requested_at} /></>}
    </>
  );
}

function NoSuchJob({ id }: { id: string }) {
  return (
    <Empty title="Job not found">
      <p>
        <code>{visible(clip(id, 80))}</code> does not exist, belongs to another tenant, or was pruned.
      </p>
      <p>
        <a href="#/jobs">All jobs</a>
      </p>
    </Empty>
  );
}

function Evidence({ id, version }: { id: string; version: number }) {
  const why = useRead<Why>(apiUrl(["jobs", id, "why"]));
  useEffect(() => why.again(), [version]);
  return (
    <Card title="Why this status">
      <Problem words={why.problem} again={why.again} />
      {why.data && (
        <>
          <p>
            <Linked of={why.data.why} most={1000} />
          </p>
          {typeof why.data.evidence["defined_as"] === "string" && (
            <p>
              It waits for the limit <LimitLink name={why.data.evidence["defined_as"]} />.
            </p>
          )}
          <JsonView value={why.data.evidence} label="The evidence" />
          <Command line={command(["jobs", "why", id])} />
        </>
      )}
    </Card>
  );
}

function Course({ job }: { job: Job }) {
  const steps = job.detail?.steps ?? [];
  return (
    <section class="course" aria-label="Progress">
      <Progress job={job} isLarge />
      {job.status === "RUNNING" && (
        <p class="faint">{job.detail?.rate ? `${job.detail.rate >= 1 ? Math.round(job.detail.rate * 10) / 10 : job.detail.rate} a second` : ""}</p>
      )}
      {steps.length > 0 && (
        <ol class="steps">
          {steps.map((step, place) => (
            <li key={place} class={`step-${step.state}`}>
              <Icon shape={step.state === "done" ? "check" : step.state === "running" ? "play" : "ring"} />
              <span>
                <Text of={step.name} most={80} />
              </span>
              <span class="offscreen">{step.state}</span>
              {step.seconds !== null && <span class="faint">{duration(step.seconds * SECOND)}</span>}
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}

/** Announces the progress to screen readers, at a bearable rate. */
function Announcer({ job }: { job: Job }) {
  const [words, setWords] = useState("");
  const told = useRef(0);
  const status = useRef(job.status);
  useEffect(() => {
    if (announces.value === "off") return;
    const isNews = status.current !== job.status;
    if (!isNews && Date.now() - told.current < ANNOUNCE_MS) return;
    told.current = Date.now();
    status.current = job.status;
    setWords(isFinal(job.status) ? job.why : progressWords(job));
  }, [job.version, job.live]);
  return (
    <p class="offscreen" role="status" aria-live="polite">
      {visible(words)}
    </p>
  );
}

function Failed({ error, status }: { error: Failure; status: string }) {
  const [isOwnOnly, setOwnOnly] = useState(false);
  const parts = error.traceback ? framesOf(error.traceback) : [];
  const hasOwn = parts.some((part) => "isOwn" in part && part.isOwn);
  return (
    <Card id="error" title={isFinal(status) ? "Error" : "Error of the last attempt"} aside={<Copy text={error.traceback ?? `${error.type}: ${error.message}`} what="The error" />}>
      <p class="error-line mono">
        <strong>{visible(clip(error.type, 120))}</strong>: {visible(clip(error.message, 2000))}
      </p>
      {parts.length > 0 && (
        <>
          {hasOwn && (
            <label class="inline">
              <input type="checkbox" checked={isOwnOnly} onChange={() => setOwnOnly(!isOwnOnly)} /> only your own code
            </label>
          )}
          <pre class="trace" tabIndex={0} aria-label="Traceback">
            {parts.map((part, place) =>
              "text" in part ? (
                <div key={place}>{visible(part.text)}</div>
              ) : isOwnOnly && !part.isOwn ? null : (
                <div key={place} class={part.isOwn ? "own" : "foreign"}>
                  {visible([part.head, ...part.lines].join("\n"))}
                </div>
              ),
            )}
          </pre>
        </>
      )}
      {parts.length === 0 && !may("operator") && <p class="faint">The traceback is shown to operators and admins.</p>}
    </Card>
  );
}

function Result({ job }: { job: Job }) {
  if (job.result === null) return null;
  const offered = typeof job.result === "object" && !Array.isArray(job.result) && "download_url" in job.result && typeof job.result["download_url"] === "string" ? safeUrl(job.result["download_url"]) : null;
  return (
    <Card id="result" title="Result">
      {offered && (
        <p>
          <a class="button main" href={offered} target="_blank" rel="noopener noreferrer nofollow">
            Download
          </a>
        </p>
      )}
      <JsonView value={job.result} label="The result" />
    </Card>
  );
}

function About({ job }: { job: Job }) {
  const again = useRead<Page<Job>>(isFinal(job.status) ? apiUrl(["jobs"], { rerun_of: job.id, limit: 5 }) : null);
  useNews((news) => {
    if (again.data?.items.some((known) => news.some((one) => one.job.id === known.id))) again.again();
  });
  const reruns = again.data?.items ?? [];
  const nodes = stats.value?.nodes ?? [];
  const metadata = Object.keys(job.metadata).length > 0;
  return (
    <Card id="about" title="About">
      <Facts
        rows={[
          ["Enqueued", <Time at={job.created_at} />],
          Math.abs(instant(job.run_at) - instant(job.created_at)) > SECOND ? ["Due", <Time at={job.run_at} />] : null,
          job.started_at ? ["Started", <Time at={job.started_at} />] : null,
          job.finished_at ? ["Ended", <Time at={job.finished_at} />] : null,
          job.started_at && job.finished_at ? ["Took", duration(instant(job.finished_at) - instant(job.started_at))] : null,
          ["Attempts", `${job.attempts} (${job.failures} failed, ${job.max_attempts} allowed)`],
          job.schedule ? ["Schedule", <ScheduleLink name={job.schedule} tenant={job.tenant} />] : null,
          job.occurrence_at && job.schedule ? ["Occurrence", <a href={scheduleHref({ name: job.schedule, tenant: job.tenant }, { at: job.occurrence_at })}><Time at={job.occurrence_at} /></a>] : null,
          job.rerun_of ? ["Rerun of", <JobLink id={job.rerun_of} />] : null,
          reruns.length ? ["Run again as", <>{reruns.map((one) => <span key={one.id}><JobLink id={one.id} /> <Badge state={one.status} /> </span>)}</>] : null,
          job.parent ? ["Enqueued by", <JobLink id={job.parent} />] : null,
          job.blocked_by ? ["Waits for", <JobLink id={job.blocked_by} />] : null,
          job.batch ? ["Batch", <a href={href(["jobs"], { batch: job.batch })}>{shortId(job.batch)}</a>] : null,
          job.parked ? ["Parked", <Text of={job.parked} />] : null,
          ["Queue", <a href={href(["jobs"], { queue: job.queue })}><Text of={job.queue} most={60} /></a>],
          job.priority ? ["Priority", job.priority] : null,
          ["Tenant", <Text of={job.tenant} most={60} />],
          job.key ? ["Key", <Text of={job.key} most={120} />] : null,
          job.node ? ["Worker", <Text of={nodes.find((node) => node.id === job.node)?.name ?? shortId(job.node)} />] : null,
          job.timeout ? ["Time limit", job.timeout] : null,
          job.expires_at ? ["Expires", <Time at={job.expires_at} />] : null,
          job.tags.length ? ["Tags", <>{job.tags.map((tag) => <a key={tag} class="tag" href={href(["jobs"], { tag })}><Text of={tag} most={60} /></a>)}</>] : null,
          ...otherOptions(job).map(([title, value]) => [title, <Text of={typeof value === "string" ? value : writeExact(value)} most={300} />] as const),
          ["Version", job.version],
        ]}
      />
      {metadata && <Fold title="Metadata">{() => <JsonView value={job.metadata} label="The metadata" />}</Fold>}
    </Card>
  );
}

function History({ id, version }: { id: string; version: number }) {
  return (
    <Card title="Events">
      <Fold title="Event history">{() => <Events id={id} version={version} />}</Fold>
    </Card>
  );
}

function Events({ id, version }: { id: string; version: number }) {
  const history = useRead<Page<HistoryEntry>>(apiUrl(["jobs", id, "history"]));
  const again = useCalm(history.again, SECOND);
  useEffect(() => again(), [version]);
  if (history.data === null) return history.problem ? <Problem words={history.problem} again={history.again} /> : <Loading what="events" />;
  return (
    <Table
      label="Table: events"
      columns={[["Time", "figure"], ["Event"], ["Details"]]}
      lines={history.data.items.map((event) => ({
        key: String(event.seq),
        cells: [<Time at={event.at} />, visible(event.event), <code class="small-text">{visible(clip(writeExact(event.data), 300).replace(/^\{\}$/, ""))}</code>],
      }))}
    />
  );
}

