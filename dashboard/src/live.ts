/**
 * The one live connection. States, as the pill shows them:
 *
 *   connecting → live ⇄ reconnecting → polling (no stream gets through; everything is read every few seconds)
 *   paused (by the user) · asleep (the tab has been hidden for a minute)
 *
 * Pages hear batches of news four times a second at most, and "read again" after a gap, a pause, or by polling.
 */
import { signal } from "@preact/signals";
import { parseExact } from "./exact.ts";
import type { JobNews } from "./types.ts";

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

/** How long to wait before the next connection: doubling from a second. */
export function waitBefore(failures: number): number {
  return Math.min(WAIT_MS_MAX, 1_000 * 2 ** Math.max(0, failures - 1));
}

/** Which state a broken connection leaves us in. */
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

/** Hear what happens to jobs, until the returned function is called. */
export function hear(listener: Hear): () => void {
  hearers.add(listener);
  return () => hearers.delete(listener);
}

/** Be told to read again what is shown, until the returned function is called. */
export function onReadAgain(listener: Again): () => void {
  readers.add(listener);
  return () => readers.delete(listener);
}

/** Have everything that is shown be read again. */
export function readAgain(): void {
  for (const listener of [...readers]) listener();
}

/** Connect, and stay connected. `trouble` is called when a connection was refused: the token may count no more. */
export function startLive(trouble: () => void): void {
  onTrouble = trouble;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(sleepTimer);
    if (document.hidden) sleepTimer = window.setTimeout(sleep, SLEEP_AFTER_MS);
    else if (liveState.value === "asleep") wake();
  });
  connect();
}

/** Stop what moves on the page, or let it move again. */
export function togglePause(): void {
  if (liveState.value === "paused") return wake();
  close();
  liveState.value = "paused";
}

/** Ask for nothing more: without a token every try would count as a wrong one. */
export function stopLive(): void {
  close();
  liveState.value = "asleep";
}

function sleep(): void {
  if (liveState.value === "paused") return;
  close();
  liveState.value = "asleep";
}

function wake(): void {
  failures = 0;
  hadGap = true;
  liveState.value = "connecting";
  connect();
}

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
  if (failures >= FAILURES_TO_POLL) pollTimer = window.setInterval(readAgain, POLL_MS);
  const address = place === null ? "api/stream" : `api/stream?cursor=${encodeURIComponent(place)}`;
  const opened = new EventSource(address);
  source = opened;
  opened.addEventListener("ready", () => {
    clearInterval(pollTimer);
    failures = 0;
    liveState.value = "live";
    if (hadGap) readAgain();
    hadGap = false;
  });
  opened.addEventListener("resync", (event) => {
    place = event.lastEventId || place;
    failures = 0;
    liveState.value = "live";
    hadGap = false;
    readAgain();
  });
  for (const kind of NEWS_KINDS) opened.addEventListener(kind, (event) => take(kind, event));
  opened.addEventListener("error", () => {
    if (source === opened) broken(opened);
  });
}

function take(kind: string, event: MessageEvent<string>): void {
  place = event.lastEventId || place;
  if (liveState.value !== "live") {
    clearInterval(pollTimer);
    failures = 0;
    liveState.value = "live";
  }
  try {
    batch.push({ kind, job: parseExact(event.data) as unknown as JobNews });
  } catch {
    return; // Half an event of a connection that broke; the next one tells it again.
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
  liveState.value = stateAfter(failures);
  opened.close(); // We say when to come back, not the browser: it would try every second, for ever.
  clearInterval(pollTimer);
  if (failures >= FAILURES_TO_POLL) pollTimer = window.setInterval(readAgain, POLL_MS);
  if (failures === 1) hadGap = true;
  onTrouble();
  retryTimer = window.setTimeout(connect, waitBefore(failures));
}
