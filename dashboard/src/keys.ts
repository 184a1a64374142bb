/** Keyboard shortcuts: single letters, except in text fields; `g` waits for a second letter. */
import { signal } from "./signals.ts";
import { go } from "./router.ts";
import { nextTheme, shortcuts } from "./state.ts";
import { togglePause } from "./live.ts";

export const showsHelp = signal(false);
export const showsPalette = signal(false);

export const PAGES: readonly { key: string; path: string; name: string }[] = [
  { key: "n", path: "", name: "Now" },
  { key: "j", path: "jobs", name: "Jobs" },
  { key: "s", path: "schedules", name: "Schedules" },
  { key: "q", path: "queues", name: "Queues & workers" },
  { key: "l", path: "limits", name: "Limits" },
  { key: "e", path: "tenants", name: "Tenants" },
  { key: "p", path: "problems", name: "Problems" },
  { key: "t", path: "settings", name: "Settings" },
];

export const HELP: readonly (readonly [string, string])[] = [
  ["?", "this help"],
  ["Ctrl K", "search pages and commands"],
  ["/", "filter"],
  ...PAGES.map((page) => [`g ${page.key}`, page.name] as const),
  ["j  k", "next, previous row"],
  ["Enter", "open the row"],
  ["x", "select the row"],
  ["a", "select all that match"],
  ["R", "retry the job or the selection"],
  ["C", "cancel the job or the selection"],
  ["w", "ask why (on a job)"],
  ["f", "follow the log (on a job)"],
  [".", "pause and resume live updates"],
  ["t", "theme: system, light, dark"],
  ["Esc", "close, clear the selection, go back"],
];

type Handler = (event: KeyboardEvent) => void;
const handlers: Map<string, Handler>[] = [];
let waitsForPage = 0;

/** Register shortcuts while a page is shown; the latest page wins. */
export function bindKeys(keys: Readonly<Record<string, Handler>>): () => void {
  const own = new Map(Object.entries(keys));
  handlers.push(own);
  return () => {
    const place = handlers.indexOf(own);
    if (place >= 0) handlers.splice(place, 1);
  };
}

/** Start to listen to the keyboard. */
export function startKeys(): void {
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      showsPalette.value = !showsPalette.value;
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || isWriting(event.target) || document.querySelector("dialog[open]")) return;
    if (shortcuts.value === "off" && event.key.length === 1) return;
    if (take(event)) event.preventDefault();
  });
}

function take(event: KeyboardEvent): boolean {
  const key = event.key;
  if (waitsForPage && Date.now() - waitsForPage < 1_500) {
    waitsForPage = 0;
    const page = PAGES.find((one) => one.key === key);
    if (page) go(`#/${page.path}`);
    return page !== undefined;
  }
  // Links and buttons handle Enter themselves.
  if (key === "Enter" && event.target instanceof HTMLElement && event.target.closest("a, button, summary, time")) return false;
  for (const own of [...handlers].reverse()) {
    const handler = own.get(key);
    if (handler) {
      handler(event);
      return true;
    }
  }
  if (key === "g") waitsForPage = Date.now();
  else if (key === "?") showsHelp.value = true;
  else if (key === ".") togglePause();
  else if (key === "t") nextTheme();
  else if (key === "/") {
    const field = document.querySelector<HTMLInputElement>("[data-filter]");
    field?.focus();
    field?.select();
    return field !== null;
  } else return false;
  return true;
}

function isWriting(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input:not([type=checkbox]), textarea, select"));
}
