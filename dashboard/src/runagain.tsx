/** A new job like an old one, with other arguments. */
import { useState } from "preact/hooks";
import { apiUrl, ask } from "./api.ts";
import { command, type Options } from "./cli.ts";
import { FormDialog } from "./dialog.tsx";
import { parseExact, writeExact, type Json } from "./exact.ts";
import { shortId } from "./format.ts";
import { go, href } from "./router.ts";
import { seesAll } from "./state.ts";
import { isFinal } from "./statuses.ts";
import { say } from "./toasts.tsx";
import type { Job } from "./types.ts";

/** Say what is wrong with arguments that were typed; null when nothing is. What is masked only the job itself knows. */
export function checkArgs(text: string, mayMask: boolean): string | null {
  let value: Json;
  try {
    JSON.parse(text); // The stricter of the two.
    value = parseExact(text);
  } catch (error) {
    return error instanceof Error ? error.message : "not JSON";
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) return "The arguments are one JSON object: { … }";
  return !mayMask && hasMask(value) ? "Some values are masked (***). Type them again; this page does not know them." : null;
}

function hasMask(value: Json): boolean {
  if (value === "***") return true;
  return value !== null && typeof value === "object" && Object.values(value).some((inner) => hasMask(inner as Json));
}

export function RunAgain({ job, onClose }: { job: Job; onClose: () => void }) {
  const [text, setText] = useState(() => writeExact(job.args, 2));
  const isOver = isFinal(job.status);
  const wrong = checkArgs(text, isOver);
  const line = isOver
    ? command(["jobs", "retry", job.id], { args: compact(text) })
    : command(["enqueue", job.type], { args: compact(text), ...flagsLike(job) });
  const run = async (): Promise<void> => {
    // The arguments go as they were typed, so that every digit arrives. What has ended is retried, and linked to the new
    // job; beside one that has not, another one is enqueued.
    const made = isOver ? await ask<Job>(apiUrl(["jobs", job.id, "retry"]), { method: "POST", text: `{"args":${text}}` }) : await ask<Job>(apiUrl(["jobs"]), { method: "POST", text: `${writeExact(sameAs(job)).slice(0, -1)},"args":${text}}` });
    onClose();
    say({ words: `Enqueued as ${shortId(made.id)}.`, command: line });
    go(href(["jobs", made.id]));
  };
  return (
    <FormDialog title={`Run ${job.type} with other arguments`} onClose={onClose} act={run} verb="Enqueue" isReady={wrong === null} isWide command={wrong === null ? line : undefined}>
      <label>
        Arguments as JSON
        <textarea class="mono" rows={10} value={text} spellcheck={false} aria-invalid={wrong !== null} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      {wrong && <p class="hint tone-bad">{wrong}</p>}
      <p class="faint">Queue, priority, attempts, time limit and tags stay as they were. It is a new job; the old one is not changed.{isOver && " What is masked (***) keeps its value."}</p>
    </FormDialog>
  );
}

/** Write down what a job like this one is given. */
function sameAs(job: Job): { [name: string]: Json } {
  const rest: { [name: string]: Json } = { type: job.type, queue: job.queue, priority: job.priority, max_attempts: job.max_attempts, tags: job.tags };
  if (seesAll.value) rest["tenant"] = job.tenant;
  if (job.timeout) rest["timeout"] = job.timeout;
  return rest;
}

/** The same as options of the command line. */
function flagsLike(job: Job): Options {
  return {
    queue: job.queue,
    priority: String(job.priority),
    "max-attempts": String(job.max_attempts),
    tag: job.tags,
    tenant: seesAll.value ? job.tenant : undefined,
    "job-timeout": job.timeout ?? undefined,
  };
}

function compact(text: string): string {
  try {
    return writeExact(parseExact(text));
  } catch {
    return text;
  }
}
