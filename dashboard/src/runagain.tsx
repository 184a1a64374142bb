/** A new job like an old one, with other arguments. */
import { useState } from "preact/hooks";
import { apiUrl, ask } from "./api.ts";
import { command } from "./cli.ts";
import { FormDialog } from "./dialog.tsx";
import { parseExact, writeExact, type Json } from "./exact.ts";
import { shortId } from "./format.ts";
import { jobFlags, optionsOf } from "./joboptions.ts";
import { go, href } from "./router.ts";
import { seesAll } from "./state.ts";
import { isFinal } from "./statuses.ts";
import { say } from "./toasts.tsx";
import type { Job } from "./types.ts";

/** Validate typed arguments; null if they are valid. Only the stored job has masked values. */
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
    : command(["enqueue", job.type], { args: compact(text), ...jobFlags(optionsOf(job, seesAll.value)) });
  const run = async (): Promise<void> => {
    // The arguments are sent verbatim, so that no digit is lost. A finished job is retried, and linked to the new
    // job; for an unfinished one, another job is enqueued.
    const made = isOver ? await ask<Job>(apiUrl(["jobs", job.id, "retry"]), { method: "POST", text: `{"args":${text}}` }) : await ask<Job>(apiUrl(["jobs"]), { method: "POST", text: `${writeExact(optionsOf(job, seesAll.value) as Json).slice(0, -1)},"args":${text}}` });
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

function compact(text: string): string {
  try {
    return writeExact(parseExact(text));
  } catch {
    return text;
  }
}
