/** All actions: each asks before it destroys something, shows its command, and reports the outcome. */
import { ApiError, apiUrl, ask, wordsOf } from "./api.ts";
import { command } from "./cli.ts";
import { confirm, type Answers } from "./dialog.tsx";
import type { Json } from "./exact.ts";
import { flagsOf } from "./filters.ts";
import { clip, count, counted, shortId, visible } from "./format.ts";
import { go, href } from "./router.ts";
import { readStats } from "./state.ts";
import { isFinal } from "./statuses.ts";
import { say, type Toast } from "./toasts.tsx";
import type { FailureGroup, JobNews, Letters, Schedule } from "./models.ts";
import type { Delivery, Job, Limit, ManyOutcome, Queue, Token, Webhook, Worker } from "./types.ts";
import { Badge } from "./ui.tsx";
import { scheduleCommand, scheduleUrl } from "./whose.ts";

/** Run an action, and show its outcome. */
export async function perform(what: () => Promise<string | Toast>, line?: string): Promise<boolean> {
  const same = line ? { command: line } : {};
  try {
    const told = await what();
    say(typeof told === "string" ? { words: told, ...same } : { ...same, ...told });
    void readStats();
    return true;
  } catch (error) {
    say({ words: wordsOf(error), tone: "bad", stays: true, ...same });
    return false;
  }
}

type Body = Record<string, string | boolean | number | readonly string[] | Filter | undefined>;
/** Filters of jobs, with the names of the list of jobs. */
export type Filter = Readonly<Record<string, string | undefined>>;

/** Leave out undefined and empty values. */
const given = (body: Body): { [name: string]: Json } => Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined && value !== "")) as { [name: string]: Json };

/** POST a body; undefined and empty values are left out. */
const post = <Shape,>(parts: readonly string[], body?: Body): Promise<Shape> => ask<Shape>(apiUrl(parts), { method: "POST", ...(body ? { body: given(body) } : {}) });

// --- jobs

/** Cancel a job. */
export function cancelJob(job: JobNews, after: () => void): void {
  const line = ({ reason }: { reason: string }): string => command(["jobs", "cancel", job.id], { reason });
  const isRunning = job.status === "RUNNING";
  confirm({
    title: `Cancel this job of ${job.type}?`,
    words: isRunning ? <p>It is running. It is asked to stop, and ends when its code has stopped.</p> : <p>It has not started, and will not start.</p>,
    verb: "Cancel the job",
    isGrave: true,
    asksReason: true,
    command: line,
    act: async ({ reason }) => {
      const answer = await post<Job>(["jobs", job.id, "cancel"], { reason });
      say({ words: answer.status === "CANCELLED" ? "The job is cancelled." : "The job was asked to stop.", command: line({ reason }) });
      after();
    },
  });
}

/** Retry a job, as a new one. */
export async function retryJob(job: { id: string }, opensIt: boolean): Promise<void> {
  const line = command(["jobs", "retry", job.id]);
  await perform(async () => {
    const again = await post<Job>(["jobs", job.id, "retry"]);
    if (opensIt && again.id !== job.id) go(href(["jobs", again.id]));
    return again.id === job.id ? "The job is checked again." : `It runs again as ${shortId(again.id)}.`;
  }, line);
}

const CALLS_MAX = 50;

/** The selected jobs: by id, or all that match. */
export type Chosen = { jobs: readonly JobNews[] } | { filter: Filter };

/** Return whether the action applies to a job, as far as its status tells. */
function fits(verb: "retry" | "cancel", job: JobNews): boolean {
  return isFinal(job.status) === (verb === "retry") || job.status === "BLOCKED";
}

/** Retry or cancel many jobs, after one confirmation with the server's count. */
export async function bulk(verb: "retry" | "cancel", chosen: Chosen, after: () => void): Promise<void> {
  const isRetry = verb === "retry";
  const picked = "jobs" in chosen ? chosen.jobs : [];
  const ids = picked.filter((job) => fits(verb, job)).map((job) => job.id);
  const body: Body = "filter" in chosen ? { filter: chosen.filter } : { ids };
  const line = ({ reason }: { reason: string }): string => command(["jobs", verb, ...ids], { ...("filter" in chosen ? { ...flagsOf(chosen.filter), yes: true as const } : {}), reason });
  let found: ManyOutcome | null = null;
  try {
    if (ids.length || "filter" in chosen) found = await post<ManyOutcome>(["jobs", verb], { ...body, dry_run: true });
  } catch (error) {
    return void say({ words: wordsOf(error), tone: "bad", stays: true });
  }
  const why = isRetry ? "not ended yet, or retried already" : "ended already, or asked to stop";
  if (!found?.matched) return void say({ words: `Nothing to do: ${why}.`, tone: "warn" });
  const number = `${found.is_exact ? "" : "more than "}${counted(found.matched, "job")}`;
  const states = new Map<string, number>();
  for (const job of picked) if (ids.includes(job.id)) states.set(job.status, (states.get(job.status) ?? 0) + 1);
  const others = picked.length && picked.length - found.matched;
  confirm({
    title: isRetry ? `Run ${number} again?` : `Cancel ${number}?`,
    words: (
      <>
        {states.size > 0 && (
          <ul class="plain">
            {[...states].map(([status, many]) => (
              <li key={status}>
                <Badge state={status} /> {many}
              </li>
            ))}
          </ul>
        )}
        {"filter" in chosen && <p>All matching jobs, oldest first, in batches of a thousand. If you close this page, the rest is not processed.</p>}
        {others > 0 && (
          <p>
            {counted(others, "job")} of the selection {others === 1 ? "is" : "are"} skipped: {why}.
          </p>
        )}
      </>
    ),
    verb: isRetry ? "Run again" : "Cancel them",
    isGrave: !isRetry,
    asksReason: !isRetry,
    command: line,
    number: found.matched,
    act: async ({ reason }) => {
      void settle(verb, { ...body, reason }, number, line({ reason })).then(after);
    },
  });
}

/** Repeat, a thousand jobs at a time, until none is left or none changes. */
async function settle(verb: "retry" | "cancel", body: Body, of: string, line: string): Promise<void> {
  let total = 0;
  let close = (): void => undefined;
  const refused: ManyOutcome["refused"] = [];
  await perform(async () => {
    try {
      for (let call = 0; call < CALLS_MAX; call++) {
        const answer = await post<ManyOutcome>(["jobs", verb], body);
        total += answer.done;
        refused.push(...answer.refused);
        close();
        if (!answer.more || answer.done === 0) break;
        close = say({ words: `${count(total)} of ${of} …`, stays: true });
      }
    } catch (error) {
      throw new Error(`${total ? `${counted(total, "job")} done, then: ` : ""}${wordsOf(error)}`);
    } finally {
      close();
    }
    const rest = refused[0] ? ` ${counted(refused.length, "was", "were")} refused, for example ${shortId(refused[0].id)}: ${clip(refused[0].reason, 160)}` : "";
    return { words: `${counted(total, "job")} ${verb === "retry" ? "will run again" : "cancelled or asked to stop"}.${rest}`, ...(rest ? { tone: "warn" as const, stays: true } : {}) };
  }, line);
}

// --- schedules

/** Enqueue a job of a schedule now. */
export async function runNow(schedule: Schedule): Promise<void> {
  await perform(async () => {
    const job = await ask<Job & { outcome?: string; message?: string | null }>(scheduleUrl(schedule, ["trigger"]), { method: "POST", body: {} });
    if (job.outcome === "not started") return { words: `It was not started: ${job.message ?? "another job of it is live"}.`, tone: "warn", link: { href: href(["jobs", job.id]), words: "Open that job" } };
    return { words: `${schedule.name} runs now as ${shortId(job.id)}.`, link: { href: href(["jobs", job.id]), words: "Open it" } };
  }, scheduleCommand("trigger", schedule));
}

/** Pause a schedule, for a while or until it is resumed. */
export function pauseSchedule(schedule: Schedule, after: (changed: Schedule) => void): void {
  const line = (answers: Answers): string => scheduleCommand("pause", schedule, { ...answers });
  confirm({
    title: `Pause ${schedule.name}?`,
    words: <p>No jobs start until you resume it. Its instants are recorded as paused and are not caught up.</p>,
    verb: "Pause it",
    asksUntil: true,
    asksReason: true,
    command: line,
    act: async (answers) => {
      after(await ask<Schedule>(scheduleUrl(schedule, ["pause"]), { method: "POST", body: given({ ...answers }) }));
      say({ words: answers.until ? `${schedule.name} is paused and resumes automatically.` : `${schedule.name} is paused.`, command: line(answers) });
    },
  });
}

/** Resume a schedule. */
export async function resumeSchedule(schedule: Schedule, after: (changed: Schedule) => void): Promise<void> {
  await perform(async () => {
    after(await ask<Schedule>(scheduleUrl(schedule, ["resume"]), { method: "POST" }));
    return `${schedule.name} is resumed.`;
  }, scheduleCommand("resume", schedule));
}

/** Remove a schedule. */
export function removeSchedule(schedule: Schedule): void {
  const line = scheduleCommand("remove", schedule);
  confirm({
    title: `Remove ${schedule.name}?`,
    words: (
      <>
        <p>It starts no more jobs. Past decisions and jobs stay in the ledger.</p>
        {schedule.owner && <p>It belongs to {schedule.owner}, which puts it back when it starts.</p>}
      </>
    ),
    verb: "Remove it",
    isGrave: true,
    command: () => line,
    act: async () => {
      await ask(scheduleUrl(schedule), { method: "DELETE", headers: { "If-Match": `"${schedule.revision}"` } });
      say({ words: `${schedule.name} is removed.`, command: line });
      go("#/schedules");
    },
  });
}

// --- queues and workers

/** Pause a queue, or resume it. */
export function toggleQueue(queue: Queue, after: () => void): void {
  if (queue.paused) {
    void perform(async () => {
      await post(["queues", queue.name, "resume"]);
      after();
      return `The queue ${queue.name} is resumed.`;
    }, command(["queues", "resume", queue.name]));
    return;
  }
  const line = ({ reason }: { reason: string }): string => command(["queues", "pause", queue.name], { reason });
  confirm({
    title: `Pause the queue ${queue.name}?`,
    words: (
      <p>
        {counted(queue.pending, "waiting job")} and new jobs will wait until you resume it. {counted(queue.running, "running job")} will finish.
      </p>
    ),
    verb: "Pause it",
    asksReason: true,
    command: line,
    act: async ({ reason }) => {
      await post(["queues", queue.name, "pause"], { reason });
      say({ words: `The queue ${queue.name} is paused.`, command: line({ reason }) });
      after();
    },
  });
}

// --- limits and tenants

/**
 * Send a definition, but not over a change that somebody else has made since it was shown: then `shown` gets the new one,
 * and an error says what it is, so that the next attempt knows what it replaces.
 */
export async function define<Shape>(parts: readonly string[], body: Body, shown: { current: Shape | null }, words: (found: Shape | null) => string): Promise<Shape> {
  const found = await ask<Shape>(apiUrl(parts)).catch((error: unknown) => {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  });
  if (words(found) !== words(shown.current)) {
    const what = shown.current === null ? "It exists already" : "Somebody else has changed it meanwhile";
    shown.current = found;
    throw new Error(`${what}: it ${words(found)}. Submit again to replace that`);
  }
  return ask<Shape>(apiUrl(parts), { method: "PUT", body: given(body) });
}

/** Remove a limit. */
export function removeLimit(limit: Limit, after: () => void): void {
  const line = command(["limits", "remove", limit.name]);
  confirm({
    title: `Remove the limit ${limit.name}?`,
    words: (
      <>
        <p>Jobs that wait for it may start, and new jobs that name it are rejected.</p>
        {limit.owner && <p>It is declared by {limit.owner}, which puts it back when it starts.</p>}
      </>
    ),
    verb: "Remove it",
    isGrave: true,
    command: () => line,
    act: async () => {
      await ask(apiUrl(["limits", limit.name]), { method: "DELETE" });
      say({ words: `The limit ${limit.name} is removed.`, command: line });
      after();
    },
  });
}

/** Drain a worker. */
export function drainWorker(worker: Worker, after: () => void): void {
  const line = command(["workers", "drain", worker.id]);
  confirm({
    title: `Drain ${worker.name}?`,
    words: <p>It claims no more jobs, finishes or hands back {counted(worker.running, "running job")}, and exits.</p>,
    verb: "Drain it",
    isGrave: true,
    command: () => line,
    act: async () => {
      await post(["workers", worker.id, "drain"]);
      say({ words: `${worker.name} claims no more jobs.`, command: line });
      after();
    },
  });
}

// --- dead letters

const LETTERS_AT_ONCE = 1_000;

/** Retry or drop a group of dead letters: exactly those that the server counts now. */
export async function settleLetters(verb: "retry" | "drop", group: FailureGroup, after: () => void): Promise<void> {
  const which = { type: group.type, error: group.error, limit: LETTERS_AT_ONCE };
  const line = command(["dead", verb], { task: group.type, error: group.error });
  let found: Letters;
  try {
    found = await post<Letters>(["dead", verb], { ...which, dry_run: true });
  } catch (error) {
    return void say({ words: wordsOf(error), tone: "bad", stays: true });
  }
  if (!found.count) {
    say({ words: "Already retried or dropped by someone else.", tone: "warn" });
    return after();
  }
  const number = found.more ? Math.max(group.count, found.count) : found.count;
  confirm({
    title: verb === "retry" ? `Run ${counted(number, "dead letter")} again?` : `Drop ${counted(number, "dead letter")}?`,
    words: (
      <>
        <p>
          <strong>{visible(clip(group.type, 60))}</strong> <span class="mono">{visible(clip(group.error, 320))}</span>
        </p>
        <p>{verb === "retry" ? "Each runs as a new job that is linked to the old one." : "They leave the dead-letter queue. The jobs stay in the history, and nothing runs again."}</p>
      </>
    ),
    verb: verb === "retry" ? "Run again" : "Drop",
    isGrave: verb === "drop",
    command: () => line,
    number,
    act: async () => {
      let { count: done, refused } = await post<Letters>(["dead", verb], { ids: found.ids });
      let more = found.more;
      for (let call = 1; more && call < CALLS_MAX; call++) {
        const next = await post<Letters>(["dead", verb], which);
        done += next.count;
        refused = [...refused, ...next.refused];
        more = next.more && next.count > 0;
      }
      const words = verb === "retry" ? `${counted(done, "job")} will run again.` : `${counted(done, "dead letter")} dropped.`;
      const others = refused.length ? ` Someone else already handled ${count(refused.length)}.` : "";
      say({ words: words + others, command: line, ...(others ? { tone: "warn" as const } : {}) });
      after();
      void readStats();
    },
  });
}

// --- tokens and webhooks

/** Revoke a token. */
export function revokeToken(token: Token, after: () => void): void {
  const line = command(["tokens", "revoke", token.id]);
  confirm({
    title: `Revoke the token of ${token.name}?`,
    words: <p>It stops working within five seconds, also on open streams. This cannot be undone.</p>,
    verb: "Revoke it",
    isGrave: true,
    command: () => line,
    act: async () => {
      await ask(apiUrl(["tokens", token.id]), { method: "DELETE" });
      say({ words: `The token of ${token.name} is revoked.`, command: line });
      after();
    },
  });
}

/** Remove a webhook. */
export function removeWebhook(hook: Webhook, after: () => void): void {
  const line = command(["webhooks", "remove", hook.id]);
  confirm({
    title: "Remove this webhook?",
    words: <p>{hook.url} is deleted, and its pending deliveries are discarded.</p>,
    verb: "Remove it",
    isGrave: true,
    command: () => line,
    act: async () => {
      await ask(apiUrl(["webhooks", hook.id]), { method: "DELETE" });
      say({ words: "The webhook is removed.", command: line });
      after();
    },
  });
}

/** Disable or enable a webhook. */
export async function toggleWebhook(hook: Webhook, after: () => void): Promise<void> {
  await perform(async () => {
    await ask(apiUrl(["webhooks", hook.id]), { method: "PUT", body: { enabled: !hook.enabled } });
    after();
    return hook.enabled ? "The webhook is disabled." : "The webhook is enabled.";
  }, command(["webhooks", hook.enabled ? "disable" : "enable", hook.id]));
}

/** Send a test message. */
export async function testWebhook(hook: Webhook): Promise<void> {
  await perform(async () => {
    const delivery = await post<Delivery>(["webhooks", hook.id, "test"], {});
    const last = delivery.outcomes.at(-1);
    if (delivery.status !== "DELIVERED") throw new Error(`It was not delivered: ${last?.error ?? `the response was ${last?.code ?? "nothing"}`}`);
    return `Delivered: response ${last?.code ?? "none"} in ${last?.took_ms ?? 0} ms.`;
  }, command(["webhooks", "test", hook.id]));
}

/** Send a message again. */
export async function replayDelivery(delivery: Delivery, after: () => void): Promise<void> {
  await perform(async () => {
    await post(["deliveries", delivery.id, "replay"]);
    after();
    return "The message is sent again.";
  }, command(["webhooks", "replay", delivery.id]));
}

/** End the session of this browser. */
export async function signOut(): Promise<void> {
  await perform(async () => {
    await ask(apiUrl(["session"]), { method: "DELETE" });
    location.reload();
    return "Signed out.";
  });
}
