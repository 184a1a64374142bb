/** Names and styles of statuses of jobs, attempts and occurrences: a tone and a shape beside the word. */
import type { Status } from "./types.ts";

export type Tone = "good" | "bad" | "busy" | "wait" | "warn" | "calm";
export type Shape = "check" | "cross" | "play" | "ring" | "clock" | "retry" | "block" | "dash" | "alarm" | "pause" | "half";

export interface Look {
  word: string;
  tone: Tone;
  shape: Shape;
}

const JOBS: Readonly<Record<Status, Look>> = {
  RUNNING: { word: "Running", tone: "busy", shape: "play" },
  PENDING: { word: "Waiting", tone: "wait", shape: "ring" },
  SCHEDULED: { word: "Scheduled", tone: "calm", shape: "clock" },
  RETRYING: { word: "Retrying", tone: "warn", shape: "retry" },
  BLOCKED: { word: "Blocked", tone: "warn", shape: "block" },
  COMPLETED: { word: "Completed", tone: "good", shape: "check" },
  FAILED: { word: "Failed", tone: "bad", shape: "cross" },
  TIMED_OUT: { word: "Timed out", tone: "bad", shape: "alarm" },
  CANCELLED: { word: "Cancelled", tone: "calm", shape: "dash" },
};

const OTHERS: Readonly<Record<string, Look>> = {
  // Occurrences
  fired: { word: "Fired", tone: "good", shape: "check" },
  skipped: { word: "Skipped", tone: "warn", shape: "dash" },
  coalesced: { word: "Coalesced", tone: "calm", shape: "half" },
  missed: { word: "Missed", tone: "bad", shape: "alarm" },
  paused: { word: "Paused", tone: "calm", shape: "pause" },
  triggered: { word: "Triggered", tone: "good", shape: "play" },
  backfilled: { word: "Backfilled", tone: "good", shape: "half" },
  // Attempts
  completed: { word: "Completed", tone: "good", shape: "check" },
  failed: { word: "Failed", tone: "bad", shape: "cross" },
  timed_out: { word: "Timed out", tone: "bad", shape: "alarm" },
  cancelled: { word: "Cancelled", tone: "calm", shape: "dash" },
  crashed: { word: "Crashed", tone: "bad", shape: "cross" },
  expired: { word: "Lease expired", tone: "bad", shape: "block" },
  handed_back: { word: "Handed back", tone: "calm", shape: "retry" },
  released: { word: "Handed back", tone: "calm", shape: "retry" },
  parked: { word: "Parked", tone: "warn", shape: "block" },
  // Tokens, webhooks and the rest
  valid: { word: "Valid", tone: "good", shape: "check" },
  revoked: { word: "Revoked", tone: "calm", shape: "cross" },
  DELIVERED: { word: "Delivered", tone: "good", shape: "check" },
  WAITING: { word: "Waiting", tone: "wait", shape: "ring" },
  on: { word: "On", tone: "good", shape: "check" },
  off: { word: "Off", tone: "calm", shape: "pause" },
  late: { word: "Late", tone: "bad", shape: "alarm" },
  held: { word: "Held", tone: "bad", shape: "block" },
  failing: { word: "Failing", tone: "bad", shape: "cross" },
  draining: { word: "Draining", tone: "warn", shape: "half" },
  alive: { word: "Alive", tone: "good", shape: "check" },
};

/** Return the style of a status; an unknown one keeps its own name. */
export function lookOf(state: string): Look {
  const known = Object.hasOwn(JOBS, state) ? JOBS[state as Status] : Object.hasOwn(OTHERS, state) ? OTHERS[state] : undefined;
  return known ?? { word: state, tone: "calm", shape: "ring" };
}

const FINAL: readonly string[] = ["COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED"];

/** Return whether a status is final. */
export function isFinal(status: string): boolean {
  return FINAL.includes(status);
}
