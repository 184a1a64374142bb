/**
 * The one live connection of this browser. States, as the pill shows them:
 *
 *   connecting → live ⇄ reconnecting → polling (no stream gets through; everything is read every few seconds)
 *   paused (by the user) · asleep (the tab has been hidden for a minute)
 *
 * Of several tabs one has the connection, by a Web Lock, and forwards its events to the others; a browser allows six
 * connections to a server, and a seventh tab would get no response at all. When that tab is closed, paused or asleep,
 * the next one resumes after the last event. Without Web Locks (pages without TLS from another host), each tab
 * has its own connection.
 *
 * Pages get batches of job events at most four times a second, and "reload" after a gap or a pause, or when polling.
 */
import { signal } from "./signals.ts";
import { parseExact } from "./exact.ts";
import type { JobNews } from "./models.ts";

export type LiveState = "connecting" | "live" | "reconnecting" | "polling" | "paused" | "asleep";

export interface News {
  kind: string;
  job: JobNews;
}

export const liveState = signal<LiveState>("connecting");

const BATCH_MS = 250;
const POLL_MS = 5_000;
const SLEEP_AFTER_MS = 60_000;
const FAILURES_TO_POLL = 3;
const NEWS_KINDS = ["status", "progress", "done"];
const WAIT_MS_MAX = 15_000;

/** The back-off before the next connection: doubling from a second. */
export function waitBefore(failures: number): number {
  return Math.min(WAIT_MS_MAX, 1_000 * 2 ** Math.max(0, failures - 1));
}

/** The state after a broken connection. */
export function stateAfter(failures: number): LiveState {
  return failures >= FAILURES_TO_POLL ? "polling" : "reconnecting";
}

type Hear = (news: readonly News[]) => void;
type Again = () => void;

const hearers = new Set<Hear>();
const readers = new Set<Again>();
let source: EventSource | null = null;
let place: string | null = null;
let failures = 0;
let hadGap = false;
let batch: News[] = [];
let batchTimer = 0;
let retryTimer = 0;
let pollTimer = 0;
let sleepTimer = 0;
let onTrouble: () => void = () => undefined;
let tabs: BroadcastChannel | null = null;
let waiting: AbortController | null = null;
let release: (() => void) | null = null;

/** A message between tabs. */
interface Word {
  state?: LiveState;
  place?: string | null;
  again?: true;
  asks?: true;
  kind?: string;
  data?: string;
}

/** Subscribe to job events, until the returned function is called. */
export function hear(listener: Hear): () => void {
  hearers.add(listener);
  return () => hearers.delete(listener);
}

/** Subscribe to reload requests, until the returned function is called. */
export function onReadAgain(listener: Again): () => void {
  readers.add(listener);
  return () => readers.delete(listener);
}

/** Reload everything that is shown. */
export function readAgain(): void {
  for (const listener of [...readers]) listener();
}

/** Connect, and stay connected. `trouble` is called when a connection was refused: the token may be invalid. */
export function startLive(trouble: () => void): void {
  onTrouble = trouble;
  if (navigator.locks && typeof BroadcastChannel === "function") {
    tabs = new BroadcastChannel(nameOfServer());
    tabs.addEventListener("message", (event: MessageEvent<Word>) => heard(event.data));
  }
  document.addEventListener("visibilitychange", () => {
    clearTimeout(sleepTimer);
    if (document.hidden) sleepTimer = window.setTimeout(sleep, SLEEP_AFTER_MS);
    else if (liveState.value === "asleep") wake();
  });
  join();
}

/** Pause or resume live updates. */
export function togglePause(): void {
  if (liveState.value === "paused") return wake();
  leave("paused");
}

/** Stop all requests: without a token each would count as a wrong one. */
export function stopLive(): void {
  leave("asleep");
}

function sleep(): void {
  if (liveState.value !== "paused") leave("asleep");
}

function wake(): void {
  failures = 0;
  hadGap = true;
  liveState.value = "connecting";
  join();
}

// --- one connection for all tabs

/** Servers below different paths of one host are different servers. */
function nameOfServer(): string {
  return `headway ${new URL(".", document.baseURI).pathname}`;
}

/** Take the connection when no other tab has it, and listen to the one that has it until then. */
function join(): void {
  if (tabs === null) return connect();
  waiting?.abort();
  const mine = (waiting = new AbortController());
  const hold = (): Promise<void> =>
    new Promise((done) => {
      release = done;
      // Without a position to resume from, we cannot know whether events were missed.
      if (place === null && liveState.value !== "connecting") hadGap = true;
      connect();
    });
  navigator.locks.request(nameOfServer(), { signal: mine.signal }, hold).catch(() => undefined); // Rejected if we were stopped before.
  tabs.postMessage({ asks: true } satisfies Word);
}

function leave(state: LiveState): void {
  close();
  liveState.value = state;
  waiting?.abort();
  release?.();
  release = null;
}

/** Send a message to the other tabs, if this tab has the connection. */
function tellTabs(word: Word): void {
  if (release !== null) tabs?.postMessage(word);
}

function heard(word: Word): void {
  if (word.asks) return tellTabs({ state: liveState.value, place });
  if (release !== null || liveState.value === "paused" || liveState.value === "asleep") return;
  if (word.place) place = word.place;
  if (word.state) {
    liveState.value = word.state;
    if (word.state === "live" && hadGap) {
      hadGap = false;
      readAgain();
    }
  }
  if (word.again) readAgain();
  if (word.kind !== undefined) collect(word.kind, word.data ?? "");
}

function become(state: LiveState): void {
  if (liveState.value === state) return;
  liveState.value = state;
  tellTabs({ state });
}

function allReadAgain(): void {
  readAgain();
  tellTabs({ again: true });
}

// --- the connection

function close(): void {
  source?.close();
  source = null;
  clearTimeout(retryTimer);
  clearInterval(pollTimer);
  clearTimeout(batchTimer);
  batchTimer = 0;
  batch = [];
}

function connect(): void {
  close();
  if (failures >= FAILURES_TO_POLL) pollTimer = window.setInterval(allReadAgain, POLL_MS);
  const address = place === null ? "api/stream" : `api/stream?cursor=${encodeURIComponent(place)}`;
  const opened = new EventSource(address);
  source = opened;
  opened.addEventListener("ready", (event) => {
    place = event.lastEventId || place;
    works();
    if (hadGap) allReadAgain();
    hadGap = false;
  });
  opened.addEventListener("resync", (event) => {
    place = event.lastEventId || place;
    works();
    hadGap = false;
    allReadAgain();
  });
  for (const kind of NEWS_KINDS) {
    opened.addEventListener(kind, ({ data, lastEventId }: MessageEvent<string>) => {
      place = lastEventId || place;
      works();
      collect(kind, data);
      tellTabs({ kind, data });
    });
  }
  opened.addEventListener("error", () => {
    if (source === opened) broken(opened);
  });
}

function works(): void {
  clearInterval(pollTimer);
  failures = 0;
  become("live");
  tellTabs({ place });
}

function collect(kind: string, data: string): void {
  try {
    batch.push({ kind, job: parseExact(data) as unknown as JobNews });
  } catch {
    return; // An incomplete event of a broken connection; the next one sends it again.
  }
  if (!batchTimer) batchTimer = window.setTimeout(tell, BATCH_MS);
}

function tell(): void {
  batchTimer = 0;
  const news = batch;
  batch = [];
  for (const listener of [...hearers]) listener(news);
}

function broken(opened: EventSource): void {
  failures++;
  become(stateAfter(failures));
  opened.close(); // We reconnect ourselves: the browser would try every second, for ever.
  clearInterval(pollTimer);
  if (failures >= FAILURES_TO_POLL) pollTimer = window.setInterval(allReadAgain, POLL_MS);
  if (failures === 1) hadGap = true;
  onTrouble();
  retryTimer = window.setTimeout(connect, waitBefore(failures));
}
