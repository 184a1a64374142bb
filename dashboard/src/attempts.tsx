/** The attempts of a job on a timeline: waiting, running and back-off times. */
import { duration, instant, shortId } from "./format.ts";
import { now, stats } from "./state.ts";
import { isFinal } from "./statuses.ts";
import type { Attempt, Job } from "./types.ts";
import { Badge, Collection, Legend, Text } from "./ui.tsx";

export interface Span {
  kind: "waiting" | "running" | "held";
  from: number;
  to: number;
}

export interface Row {
  number: number;
  outcome: string;
  reason: string | null;
  node: string | null;
  waited: number;
  ran: number;
  held: number;
  spans: Span[];
}

/** Make rows from the finished attempts and the running one. */
export function rowsOf(job: Job, attempts: readonly Attempt[], at: number): Row[] {
  const rows: Row[] = [];
  for (const [place, one] of attempts.entries()) {
    const following = attempts[place + 1];
    const ready = instant(one.ready_at ?? one.started_at);
    const started = instant(one.started_at ?? one.ended_at);
    const ended = instant(one.ended_at);
    const after = following ? instant(following.ready_at ?? following.started_at) : job.attempts > one.attempt || !isFinal(job.status) ? instant(job.ready_at) : Number.NaN;
    const held = following || !isFinal(job.status) ? Math.max(0, (after > ended ? after : job.status === "RETRYING" && !following ? at : ended) - ended) : 0;
    rows.push(rowOf(one.attempt, one.outcome, one.reason, one.node, ready, started, ended, held));
  }
  const isLive = !isFinal(job.status) && !attempts.some((one) => one.attempt === job.attempts && job.status === "RUNNING");
  if (isLive && (job.status === "RUNNING" || job.status === "PENDING")) {
    const ready = instant(job.ready_at ?? job.created_at);
    const started = job.status === "RUNNING" ? instant(job.started_at) : at;
    rows.push(rowOf(job.status === "RUNNING" ? job.attempts : job.attempts + 1, job.status, null, job.node, ready, started, Math.max(at, started), 0));
  }
  return rows;
}

function rowOf(number: number, outcome: string, reason: string | null, node: string | null, ready: number, started: number, ended: number, held: number): Row {
  const spans: Span[] = [];
  if (started > ready) spans.push({ kind: "waiting", from: ready, to: started });
  if (ended > started) spans.push({ kind: "running", from: started, to: ended });
  if (held > 0) spans.push({ kind: "held", from: ended, to: ended + held });
  return { number, outcome, reason, node, waited: Math.max(0, started - ready), ran: Math.max(0, ended - started), held, spans };
}

export function Attempts({ job, attempts }: { job: Job; attempts: readonly Attempt[] }) {
  const rows = rowsOf(job, attempts, isFinal(job.status) ? instant(job.finished_at) : now.value);
  if (!rows.length) return null;
  const from = Math.min(...rows.flatMap((row) => row.spans.map((span) => span.from)));
  const to = Math.max(...rows.flatMap((row) => row.spans.map((span) => span.to)));
  const length = Math.max(1, to - from);
  const nodes = stats.value?.nodes ?? [];
  return (
    <Collection
      id="attempts"
      title="Attempts"
      aside={<Legend keys={[["waiting", "waiting"], ["running", "running"], ["held", "back-off"]]} />}
      columns={[["Attempt", "figure"], ["Outcome"], ["Waited", "figure"], ["Ran", "figure"], ["Back-off", "figure"], ["Timeline", "cell-spans"]]}
      items={rows}
      empty={null}
      row={(row) => ({
        key: String(row.number),
        cells: [
          row.number,
          <>
            <Badge state={row.outcome} />
            <div class="small-text faint">
              {row.reason && <Text of={row.reason} most={120} />}
              {row.node && ` on ${nodes.find((node) => node.id === row.node)?.name ?? shortId(row.node)}`}
            </div>
          </>,
          duration(row.waited),
          duration(row.ran),
          row.held ? duration(row.held) : "–",
          <div class="spans" aria-hidden="true">
            {row.spans.map((span) => (
              <i key={span.kind} class={`span-${span.kind}`} style={{ "--from": String((span.from - from) / length), "--length": String((span.to - span.from) / length) }} />
            ))}
          </div>,
        ],
      })}
    />
  );
}
