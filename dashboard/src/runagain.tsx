/** A new job like an old one, with other arguments. */
import { useState } from "preact/hooks";
import { apiUrl, ask, wordsOf } from "./api.ts";
import { command } from "./cli.ts";
import { Dialog } from "./dialog.tsx";
import { parseExact, writeExact, type Json } from "./exact.ts";
import { shortId } from "./format.ts";
import { go, href } from "./router.ts";
import { seesAll } from "./state.ts";
import { say } from "./toasts.tsx";
import type { Job } from "./types.ts";
import { Command, Problem } from "./ui.tsx";

/** Say what is wrong with arguments that were typed; null when nothing is. */
export function checkArgs(text: string): string | null {
  let value: Json;
  try {
    JSON.parse(text); // The stricter of the two.
    value = parseExact(text);
  } catch (error) {
    return error instanceof Error ? error.message : "not JSON";
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) return "The arguments are one JSON object: { … }";
  return hasMask(value) ? "Some values are masked (***). Type them anew; they are not known here." : null;
}

function hasMask(value: Json): boolean {
  if (value === "***") return true;
  return value !== null && typeof value === "object" && Object.values(value).some((inner) => hasMask(inner as Json));
}

export function RunAgain({ job, onClose }: { job: Job; onClose: () => void }) {
  const [text, setText] = useState(() => writeExact(job.args, 2));
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const wrong = checkArgs(text);
  const line = command(["enqueue", job.type], { args: compact(text), queue: job.queue === "default" ? undefined : job.queue, tenant: seesAll.value && job.tenant !== "default" ? job.tenant : undefined });
  const enqueue = async (): Promise<void> => {
    setBusy(true);
    const rest: { [name: string]: Json } = { type: job.type, queue: job.queue, priority: job.priority, max_attempts: job.max_attempts, tags: job.tags };
    if (seesAll.value) rest["tenant"] = job.tenant;
    if (job.timeout) rest["timeout"] = job.timeout;
    try {
      // The arguments go as they were typed, so that every digit arrives.
      const made = await ask<Job>(apiUrl(["jobs"]), { method: "POST", text: `${writeExact(rest).slice(0, -1)},"args":${text}}` });
      onClose();
      say({ words: `Enqueued as ${shortId(made.id)}.`, command: line });
      go(href(["jobs", made.id]));
    } catch (error) {
      setProblem(wordsOf(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Run ${job.type} with other arguments`} onClose={onClose} isWide>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void enqueue();
        }}
      >
        <label>
          Arguments as JSON
          <textarea class="mono" rows={10} value={text} spellcheck={false} aria-invalid={wrong !== null} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        {wrong && <p class="hint tone-bad">{wrong}</p>}
        <p class="faint">Queue, priority, attempts and tags stay as they were. It is a new job; the old one is not changed.</p>
        {wrong === null && <Command line={line} label="The same in a terminal" />}
        <Problem words={problem} />
        <footer>
          <button type="button" onClick={onClose}>
            Leave it
          </button>
          <button type="submit" class="main" disabled={wrong !== null || isBusy}>
            Enqueue
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

function compact(text: string): string {
  try {
    return writeExact(parseExact(text));
  } catch {
    return text;
  }
}
