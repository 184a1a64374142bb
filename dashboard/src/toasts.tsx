/** Toasts: a message, a link, and the equivalent command. */
import { signal } from "./signals.ts";
import { visible } from "./format.ts";
import { Command, Icon } from "./ui.tsx";

export interface Toast {
  words: string;
  tone?: "good" | "warn" | "bad";
  command?: string;
  link?: { href: string; words: string };
  /** Stays until it is closed, as errors should. */
  stays?: boolean;
}

const TOASTS_MAX = 2;
const SHOWN_MS = 5_000;
const WITH_COMMAND_MS = 12_000;
const shown = signal<readonly (Toast & { id: number })[]>([]);
let last = 0;

/** Show a toast. Returns a function that removes it. */
export function say(toast: Toast): () => void {
  const id = ++last;
  shown.value = [...shown.value.slice(1 - TOASTS_MAX), { ...toast, id }];
  const close = (): void => {
    shown.value = shown.value.filter((one) => one.id !== id);
  };
  if (!toast.stays) setTimeout(close, toast.command || toast.link ? WITH_COMMAND_MS : SHOWN_MS);
  return close;
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {shown.value.map((toast) => (
        <div key={toast.id} class={`toast tone-${toast.tone ?? "good"}`}>
          <Icon shape={toast.tone === "bad" ? "cross" : toast.tone === "warn" ? "alarm" : "check"} />
          <div class="toast-body">
            <p>
              {visible(toast.words)} {toast.link && <a href={toast.link.href}>{toast.link.words}</a>}
            </p>
            {toast.command && <Command line={toast.command} label="The same in a terminal" />}
          </div>
          <button type="button" class="ghost small" aria-label="Close" onClick={() => (shown.value = shown.value.filter((one) => one.id !== toast.id))}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
