/** What all pages share: who we are, the time, the latest figures, and what the person prefers. */
import { effect, signal } from "./signals.ts";
import { apiUrl, ask, needsSignIn, wordsOf } from "./api.ts";
import { SECOND } from "./format.ts";
import { liveState, onReadAgain } from "./live.ts";
import type { Role } from "./models.ts";
import type { Me, Stats } from "./types.ts";

const STATS_EVERY_MS = 5_000;
const RANKS: readonly Role[] = ["viewer", "operator", "admin"];

/** Who the server takes us for; null until it has said so. */
export const me = signal<Me | null>(null);
export const stats = signal<Stats | null>(null);
export const statsProblem = signal<string | null>(null);

/** The time by the clock of the server, to the second. */
export const now = signal(Date.now());
let ahead = 0;

/** Return the time by the clock of the server. */
export function serverNow(): number {
  return Date.now() + ahead;
}

/** Say whether the token may do this; the server decides, this only keeps useless buttons away. */
export function may(role: Role): boolean {
  return me.value !== null && RANKS.indexOf(me.value.role) >= RANKS.indexOf(role);
}

export const seesAll = {
  get value(): boolean {
    return me.value?.tenant === "*";
  },
};

/** Ask who we are; a refusal leads to the sign-in page by itself. */
export async function readMe(): Promise<void> {
  me.value = await ask<Me>(apiUrl(["me"]));
  needsSignIn.value = false;
}

/** Read the figures. */
export async function readStats(): Promise<void> {
  try {
    const began = Date.now();
    const found = await ask<Stats>(apiUrl(["stats"]));
    // Half of the way there and back: enough for clocks that are shown to the second.
    const offset = Date.parse(found.at) - (began + Date.now()) / 2;
    ahead = Math.abs(offset) > SECOND ? offset : 0;
    stats.value = found;
    statsProblem.value = null;
  } catch (error) {
    statsProblem.value = wordsOf(error);
  }
}

/** Keep time and figures current while somebody looks. */
export function startState(): void {
  const beat = (): void => {
    if (!document.hidden) now.value = serverNow();
  };
  setInterval(beat, SECOND);
  document.addEventListener("visibilitychange", beat);
  setInterval(() => {
    if (!document.hidden && liveState.value !== "paused" && !needsSignIn.value) void readStats();
  }, STATS_EVERY_MS);
  onReadAgain(() => void readStats());
}

// --- what the person prefers; kept by the browser, never sent anywhere

export type Theme = "system" | "light" | "dark";

function kept<Value extends string>(name: string, values: readonly Value[], first: Value) {
  const read = (): Value => {
    try {
      const found = localStorage.getItem(`headway.${name}`) as Value | null;
      return found !== null && values.includes(found) ? found : first;
    } catch {
      return first; // Storage may be forbidden.
    }
  };
  const value = signal<Value>(read());
  effect(() => {
    try {
      localStorage.setItem(`headway.${name}`, value.value);
    } catch {
      // Then it is as long as the page.
    }
  });
  return value;
}

const hasBrowser = typeof document !== "undefined";
export const theme = hasBrowser ? kept<Theme>("theme", ["system", "light", "dark"], "system") : signal<Theme>("system");
export const shortcuts = hasBrowser ? kept<"on" | "off">("shortcuts", ["on", "off"], "on") : signal<"on" | "off">("on");
export const announces = hasBrowser ? kept<"on" | "off">("announces", ["on", "off"], "on") : signal<"on" | "off">("on");

/** Go from system to light to dark and around. */
export function nextTheme(): void {
  const order: readonly Theme[] = ["system", "light", "dark"];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length]!;
}

/** Have the page look as the person prefers. */
export function startTheme(): void {
  effect(() => {
    if (theme.value === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme.value;
  });
}
