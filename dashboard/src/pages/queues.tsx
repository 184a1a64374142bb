/** Queues & workers: what waits where, who runs it, who decides, and how they wake each other. */
import { drainWorker, toggleQueue } from "../actions.tsx";
import { command } from "../cli.ts";
import { clip, count, counted, duration, instant, SECOND, shortId, visible } from "../format.ts";
import { useTitle } from "../hooks.ts";
import { href } from "../router.ts";
import { may, now, readStats, seesAll, stats, statsProblem } from "../state.ts";
import type { Node, Stats, Worker } from "../types.ts";
import { Badge, Card, Command, DO, Empty, Facts, Fold, Loading, Problem, Since, Table, Text, Time } from "../ui.tsx";

const WAKE_UPS: Readonly<Record<string, string>> = {
  notify: "told by the database (LISTEN/NOTIFY)",
  watch: "told by the file system",
  poll: "by looking every second",
  redis: "told through Redis",
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

function Queues({ figures }: { figures: Stats }) {
  const canAct = may("operator") && seesAll.value;
  const after = (): void => void readStats();
  return (
    <Card id="queues" title="Queues">
      {figures.queues.length === 0 ? (
        <Empty title="Every queue is empty">
          <p>A queue is here while something waits or runs in it, or while it is paused.</p>
        </Empty>
      ) : (
        <Table label="Table: queues" columns={["Queue", "State", "Waiting", "Oldest", "Running", "Workers", ...(canAct ? [DO] : [])]}>
          {figures.queues.map((queue) => {
            const workers = (figures.workers ?? []).filter((worker) => takes(worker, queue.name) && !worker.draining);
            const slots = workers.reduce((sum, worker) => sum + worker.slots, 0);
            return (
              <tr key={queue.name}>
                <td data-label="Queue" class="cell-main">
                  <a href={href(["jobs"], { queue: queue.name })}>
                    <strong>
                      <Text of={queue.name} most={60} />
                    </strong>
                  </a>
                </td>
                <td data-label="State">
                  {queue.paused ? <Badge state="paused" /> : figures.workers && workers.length === 0 ? <Badge state="held" word="No worker" /> : <Badge state="on" word="Open" />}
                  {queue.paused && (
                    <div class="small-text faint">
                      {queue.paused_by && <>by <Text of={queue.paused_by} most={40} /> </>}
                      <Time at={queue.paused_at} />
                      {queue.reason && <>: <Text of={queue.reason} most={120} /></>}
                    </div>
                  )}
                </td>
                <td data-label="Waiting" class="figure">
                  <a href={href(["jobs"], { queue: queue.name, status: "PENDING" })}>{count(queue.pending)}</a>
                </td>
                <td data-label="Oldest" class="figure">
                  {queue.pending ? duration(queue.oldest_age_seconds * SECOND) : "–"}
                </td>
                <td data-label="Running" class="figure">
                  <a href={href(["jobs"], { queue: queue.name, status: "RUNNING" })}>{count(queue.running)}</a>
                  {figures.workers && ` of ${counted(slots, "slot")}`}
                </td>
                <td data-label="Workers" class="figure">
                  {figures.workers ? workers.length : "–"}
                </td>
                {canAct && (
                  <td class="cell-do">
                    <button type="button" class="small" onClick={() => toggleQueue(queue, after)} aria-label={`${queue.paused ? "Resume" : "Pause"} the queue ${clip(queue.name, 40)}`}>
                      {queue.paused ? "Resume" : "Pause"}
                    </button>
                  </td>
                )}
              </tr>
            );
          })}
        </Table>
      )}
    </Card>
  );
}

function Workers({ figures }: { figures: Stats }) {
  const workers = figures.workers ?? [];
  const canAct = may("operator");
  return (
    <Card id="workers" title="Workers" aside={<span class="faint">{counted(workers.length, "worker")}</span>}>
      {workers.length === 0 ? (
        <Empty title="No worker is alive">
          <p>{figures.jobs.PENDING ? `${counted(figures.jobs.PENDING, "job waits", "jobs wait")} for one. Start it beside the store:` : "Start one beside the store:"}</p>
          <Command line="headway worker --app MODULE:APP" />
        </Empty>
      ) : (
        <Table label="Table: workers" columns={["Worker", "State", "Busy", "Heartbeat", "Alive for", "Queues", "Version", ...(canAct ? [DO] : [])]}>
          {workers.map((worker) => (
            <tr key={worker.id}>
              <td data-label="Worker" class="cell-main">
                <strong>
                  <Text of={worker.name} most={60} />
                </strong>
                <div class="small-text faint">
                  <code title={worker.id}>{shortId(worker.id)}</code> · {counted(worker.children, "process", "processes")}
                </div>
              </td>
              <td data-label="State">
                <Badge state={worker.draining ? "draining" : "alive"} />
              </td>
              <td data-label="Busy">
                <div class="gauge" role="meter" aria-label={`Busy slots of ${clip(worker.name, 40)}`} aria-valuemin={0} aria-valuemax={worker.slots} aria-valuenow={worker.running}>
                  <i style={{ "--part": String(worker.slots ? Math.min(1, worker.running / worker.slots) : 0) }} />
                </div>
                <span class="figure">
                  {worker.running} of {worker.slots}
                </span>
              </td>
              <td data-label="Heartbeat" class={`figure ${now.value - instant(worker.beat_at) > 15 * SECOND ? "tone-bad" : ""}`}>
                <Time at={worker.beat_at} />
              </td>
              <td data-label="Alive for" class="figure">
                <Since at={worker.started_at} />
              </td>
              <td data-label="Queues">
                <Text of={worker.queues.map((name) => (name === "*" ? "all" : name)).join(", ")} most={100} />
                <Fold title={counted(worker.tasks.length, "task")}>{() => <p class="small-text">{visible(worker.tasks.join(", "))}</p>}</Fold>
              </td>
              <td data-label="Version">{visible(worker.version)}</td>
              {canAct && (
                <td class="cell-do">
                  <button type="button" class="small" disabled={worker.draining} onClick={() => drainWorker(worker, () => void readStats())} aria-label={`Drain ${clip(worker.name, 40)}`}>
                    Drain
                  </button>
                </td>
              )}
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}

function Deciding({ figures }: { figures: Stats }) {
  const nodes = figures.nodes ?? [];
  const { leader, store } = figures;
  return (
    <div class="columns even">
      <Card id="leader" title="Who decides">
        <Facts
          rows={[
            ["Leader", leader ? <><Text of={leader.name} most={60} />, since <Time at={leader.since} /></> : nodes.some((node) => node.state["mode"] === "lock") ? "none: each schedule is locked by whoever decides it" : "nobody"],
            leader ? ["Token", <span class="figure">{String(leader.token)}</span>] : null,
            ["Shards", counted(figures.shards?.length ?? 0, "shard")],
            ["Wake-ups", [...new Set(nodes.map(wakeUps))].join(", ") || "–"],
            store ? ["Store", `${store.kind} ${store.version}, ${store.latency_ms.toFixed(1)} ms`] : null,
          ]}
        />
        {(figures.shards?.length ?? 0) > 1 && (
          <Table label="Table: shards" columns={["Shard", "Held by", "Token", "Since"]}>
            {figures.shards?.map((shard) => (
              <tr key={shard.role}>
                <td data-label="Shard">{visible(shard.role)}</td>
                <td data-label="Held by">
                  <Text of={shard.name} most={60} />
                </td>
                <td data-label="Token" class="figure">
                  {String(shard.token)}
                </td>
                <td data-label="Since" class="figure">
                  <Time at={shard.since} />
                </td>
              </tr>
            ))}
          </Table>
        )}
        <Command line={command(["status"])} />
      </Card>
      <Card id="nodes" title="Processes" aside={<span class="faint">{counted(nodes.length, "process", "processes")}</span>}>
        <Table label="Table: processes" columns={["Name", "Does", "Heartbeat", "Wake-ups", "Clock"]}>
          {nodes.map((node) => (
            <tr key={node.id}>
              <td data-label="Name" class="cell-main">
                <Text of={node.name} most={60} />
              </td>
              <td data-label="Does">{visible(node.roles.join(", "))}</td>
              <td data-label="Heartbeat" class="figure">
                <Time at={node.beat_at} />
              </td>
              <td data-label="Wake-ups">{visible(String(node.state["wake_ups"] ?? "–"))}</td>
              <td data-label="Clock" class="figure">
                {typeof node.state["skew_s"] === "number" ? (Math.abs(node.state["skew_s"]) < 0.05 ? "right" : `off by ${duration(Math.abs(node.state["skew_s"]) * SECOND)}`) : "–"}
              </td>
            </tr>
          ))}
        </Table>
      </Card>
    </div>
  );
}

function wakeUps(node: Node): string {
  const mode = String(node.state["wake_ups"] ?? "unknown");
  return Object.hasOwn(WAKE_UPS, mode) ? WAKE_UPS[mode]! : visible(clip(mode, 60));
}
