/** Shared state of all pages: the caller, the time, the latest statistics, and the preferences. */
import { effect, signal } from "./signals.ts";
import { apiUrl, ask, needsSignIn, wordsOf } from "./api.ts";
import { SECOND } from "./format.ts";
import { liveState, onReadAgain } from "./live.ts";
import type { Role } from "./models.ts";
import type { Me, Stats } from "./types.ts";

const STATS_EVERY_MS = 5_000;
const RANKS: readonly Role[] = ["viewer", "operator", "admin"];

/** The caller; null until the server has answered. */
export const me = signal<Me | null>(null);
export const stats = signal<Stats | null>(null);
export const statsProblem = signal<string | null>(null);

/** The server's time, in whole seconds. */
export const now = signal(Date.now());
let ahead = 0;

/** Return the server's time. */
export function serverNow(): number {
  return Date.now() + ahead;
}

/** Return whether the token has this role; the server decides, this only hides useless buttons. */
export function may(role: Role): boolean {
  return me.value !== null && RANKS.indexOf(me.value.role) >= RANKS.indexOf(role);
}

export const seesAll = {
  get value(): boolean {
    return me.value?.tenant === "*";
  },
};

/** Load the caller; a refusal leads to the sign-in page. */
export async function readMe(): Promise<void> {
  me.value = await ask<Me>(apiUrl(["me"]));
  needsSignIn.value = false;
}

/** Load the statistics. */
export async function readStats(): Promise<void> {
  try {
    const began = Date.now();
    const found = await ask<Stats>(apiUrl(["stats"]));
    // Half of the round trip: exact enough for clocks in seconds.
    const offset = Date.parse(found.at) - (began + Date.now()) / 2;
    ahead = Math.abs(offset) > SECOND ? offset : 0;
    stats.value = found;
    statsProblem.value = null;
  } catch (error) {
    statsProblem.value = wordsOf(error);
  }
}

/** Keep time and statistics current while the page is visible. */
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

// --- preferences, stored in the browser only

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
      // Then it lasts as long as the page.
    }
  });
  return value;
}

const hasBrowser = typeof document !== "undefined";
export const theme = hasBrowser ? kept<Theme>("theme", ["system", "light", "dark"], "system") : signal<Theme>("system");
export const shortcuts = hasBrowser ? kept<"on" | "off">("shortcuts", ["on", "off"], "on") : signal<"on" | "off">("on");
export const announces = hasBrowser ? kept<"on" | "off">("announces", ["on", "off"], "on") : signal<"on" | "off">("on");

/** Cycle through the themes: system, light, dark. */
export function nextTheme(): void {
  const order: readonly Theme[] = ["system", "light", "dark"];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length]!;
}

/** Apply the theme. */
export function startTheme(): void {
  effect(() => {
    if (theme.value === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme.value;
  });
}
