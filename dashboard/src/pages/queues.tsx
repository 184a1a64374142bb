/** Queues & workers: pending jobs, workers, the leader, and the servers beside the store. */
import { drainWorker, toggleQueue } from "../actions.tsx";
import { command } from "../cli.ts";
import { clip, count, counted, duration, instant, SECOND, shortId, visible } from "../format.ts";
import { useTitle } from "../hooks.ts";
import { href } from "../router.ts";
import { may, now, readStats, seesAll, stats, statsProblem } from "../state.ts";
import type { Limited } from "../models.ts";
import type { Node, Stats, Worker } from "../types.ts";
import { Badge, Card, Collection, Command, DO, Empty, Facts, Fold, Gauge, Loading, Problem, Since, Table, Text, Time } from "../ui.tsx";

const WAKE_UPS: Readonly<Record<string, string>> = {
  notify: "database notifications (LISTEN/NOTIFY)",
  watch: "file system events",
  poll: "by looking every second",
  redis: "Redis hints",
};

export function QueuesPage() {
  useTitle("Queues & workers");
  const figures = stats.value;
  if (figures === null) return statsProblem.value === null ? <Loading what="queues" /> : <Problem words={statsProblem.value} />;
  return (
    <>
      <h1>Queues &amp; workers</h1>
      <Queues figures={figures} />
      {seesAll.value ? (
        <>
          <Workers figures={figures} />
          <Deciding figures={figures} />
        </>
      ) : (
        <p class="faint">Workers and nodes are shown to tokens for all tenants.</p>
      )}
    </>
  );
}

function takes(worker: Worker, queue: string): boolean {
  return worker.queues.some((name) => name === "*" || name === queue || (name.endsWith("*") && queue.startsWith(name.slice(0, -1))));
}

/** Return the capacity: the configured limit, if there is one, and the slots of the workers. */
export function boundOf(limit: number | null | undefined, slots: number | undefined): string {
  if (limit === null || limit === undefined) return slots === undefined ? "" : ` of ${counted(slots, "slot")}`;
  return ` of ${count(limit)} allowed${slots !== undefined && slots < limit ? `, ${counted(slots, "slot")}` : ""}`;
}

function Queues({ figures }: { figures: Stats }) {
  const canAct = may("operator") && seesAll.value;
  const after = (): void => void readStats();
  return (
    <Collection
      id="queues"
      title="Queues"
      columns={[["Queue", "cell-main"], ["State"], ["Waiting", "figure"], ["Oldest", "figure"], ["Running", "figure"], ["Workers", "figure"], canAct && DO]}
      items={figures.queues}
      empty={
        <Empty title="Every queue is empty">
          <p>A queue is listed while it has waiting or running jobs, or is paused.</p>
        </Empty>
      }
      row={(queue) => {
        const workers = (figures.workers ?? []).filter((worker) => takes(worker, queue.name) && !worker.draining);
        const slots = workers.reduce((sum, worker) => sum + worker.slots, 0);
        return {
          key: queue.name,
          cells: [
            <a href={href(["jobs"], { queue: queue.name })}>
              <strong>
                <Text of={queue.name} most={60} />
              </strong>
            </a>,
            <>
              {queue.paused ? <Badge state="paused" /> : figures.workers && workers.length === 0 ? <Badge state="held" word="No worker" /> : <Badge state="on" word="Open" />}
              {queue.paused && (
                <div class="small-text faint">
                  {queue.paused_by && <>by <Text of={queue.paused_by} most={40} /> </>}
                  <Time at={queue.paused_at} />
                  {queue.reason && <>: <Text of={queue.reason} most={120} /></>}
                </div>
              )}
            </>,
            <a href={href(["jobs"], { queue: queue.name, status: "PENDING" })}>{count(queue.pending)}</a>,
            queue.pending ? duration(queue.oldest_age_seconds * SECOND) : "–",
            <>
              <a href={href(["jobs"], { queue: queue.name, status: "RUNNING" })}>{count(queue.running)}</a>
              {boundOf((queue as Limited).limit, figures.workers && slots)}
            </>,
            figures.workers ? workers.length : "–",
            <button type="button" class="small" onClick={() => toggleQueue(queue, after)} aria-label={`${queue.paused ? "Resume" : "Pause"} the queue ${clip(queue.name, 40)}`}>
              {queue.paused ? "Resume" : "Pause"}
            </button>,
          ],
        };
      }}
    />
  );
}

function Workers({ figures }: { figures: Stats }) {
  const workers = figures.workers ?? [];
  const canAct = may("operator");
  return (
    <Collection
      id="workers"
      title="Workers"
      aside={<span class="faint">{counted(workers.length, "worker")}</span>}
      columns={[["Worker", "cell-main"], ["State"], ["Busy"], ["Heartbeat", "figure"], ["Alive for", "figure"], ["Queues"], ["Version"], canAct && DO]}
      items={workers}
      empty={
        <Empty title="No worker is alive">
          <p>{figures.jobs.PENDING ? `${counted(figures.jobs.PENDING, "job waits", "jobs wait")} for one. Start a worker:` : "Start one:"}</p>
          <Command line="headway worker --app MODULE:APP" />
        </Empty>
      }
      row={(worker) => ({
        key: worker.id,
        cells: [
          <>
            <strong>
              <Text of={worker.name} most={60} />
            </strong>
            <div class="small-text faint">
              <code title={worker.id}>{shortId(worker.id)}</code> · {counted(worker.children, "process", "processes")}
            </div>
          </>,
          <Badge state={worker.draining ? "draining" : "alive"} />,
          <Gauge label={`Busy slots of ${clip(worker.name, 40)}`} value={worker.running} most={worker.slots}>
            {worker.running} of {worker.slots}
          </Gauge>,
          <span class={now.value - instant(worker.beat_at) > 15 * SECOND ? "tone-bad" : ""}>
            <Time at={worker.beat_at} />
          </span>,
          <Since at={worker.started_at} />,
          <>
            <Text of={worker.queues.map((name) => (name === "*" ? "all" : name)).join(", ")} most={100} />
            <Fold title={counted(worker.tasks.length, "task")}>{() => <p class="small-text">{visible(worker.tasks.join(", "))}</p>}</Fold>
          </>,
          visible(worker.version),
          <button type="button" class="small" disabled={worker.draining} onClick={() => drainWorker(worker, () => void readStats())} aria-label={`Drain ${clip(worker.name, 40)}`}>
            Drain
          </button>,
        ],
      })}
    />
  );
}

function Deciding({ figures }: { figures: Stats }) {
  const nodes = figures.nodes ?? [];
  const { leader, store } = figures;
  return (
    <div class="columns even">
      <Card id="leader" title="Scheduler leader">
        <Facts
          rows={[
            ["Leader", leader ? <><Text of={leader.name} most={60} />, since <Time at={leader.since} /></> : nodes.some((node) => node.state["mode"] === "lock") ? "none (lock mode)" : "none"],
            leader ? ["Token", <span class="figure">{String(leader.token)}</span>] : null,
            ["Shards", counted(figures.shards?.length ?? 0, "shard")],
            ["Wake-ups", [...new Set(nodes.map(wakeUps))].join(", ") || "–"],
            store ? ["Store", `${store.kind} ${store.version}, ${store.latency_ms.toFixed(1)} ms`] : null,
          ]}
        />
        {(figures.shards?.length ?? 0) > 1 && (
          <Table
            label="Table: shards"
            columns={[["Shard"], ["Held by"], ["Token", "figure"], ["Since", "figure"]]}
            lines={(figures.shards ?? []).map((shard) => ({ key: shard.role, cells: [visible(shard.role), <Text of={shard.name} most={60} />, String(shard.token), <Time at={shard.since} />] }))}
          />
        )}
        <Command line={command(["status"])} />
      </Card>
      <Collection
        id="nodes"
        title="Processes"
        aside={<span class="faint">{counted(nodes.length, "process", "processes")}</span>}
        columns={[["Name", "cell-main"], ["Roles"], ["Heartbeat", "figure"], ["Wake-ups"], ["Clock", "figure"]]}
        items={nodes}
        empty={null}
        row={(node) => {
          const skew = node.state["skew_s"];
          return {
            key: node.id,
            cells: [
              <Text of={node.name} most={60} />,
              visible(node.roles.join(", ")),
              <Time at={node.beat_at} />,
              visible(String(node.state["wake_ups"] ?? "–")),
              typeof skew === "number" ? (Math.abs(skew) < 0.05 ? "right" : `off by ${duration(Math.abs(skew) * SECOND)}`) : "–",
            ],
          };
        }}
      />
    </div>
  );
}

function wakeUps(node: Node): string {
  const mode = String(node.state["wake_ups"] ?? "unknown");
  return Object.hasOwn(WAKE_UPS, mode) ? WAKE_UPS[mode]! : visible(clip(mode, 60));
}
