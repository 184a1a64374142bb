/** Types beyond the generated ones: job events, triggers, pages of lists. */
import type { Json } from "./exact.ts";
import type { Detail, Failure, Me, Preview, Schedule as StoredSchedule, Status } from "./types.ts";

export const STATUSES = [
  "RUNNING",
  "PENDING",
  "SCHEDULED",
  "RETRYING",
  "BLOCKED",
  "COMPLETED",
  "FAILED",
  "TIMED_OUT",
  "CANCELLED",
] as const satisfies readonly Status[];

export type Role = Me["role"];

/** A job event of the stream. */
export interface JobNews {
  id: string;
  type: string;
  tenant: string;
  queue: string;
  schedule: string | null;
  key: string | null;
  tags: string[];
  status: Status;
  progress: number;
  attempts: number;
  failures: number;
  max_attempts: number;
  metadata: { [name: string]: Json };
  detail: Detail | null;
  started_at: string | null;
  finished_at: string | null;
  updated_at: string;
  why: string;
  eta_seconds: number | null;
  eta_at: string | null;
  version: number;
  live?: number;
  omitted?: string[];
  error?: Failure | null;
  result?: Json;
}

export interface Trigger {
  kind: string;
  expr?: string;
  tz?: string;
  dst?: string;
  [name: string]: Json | undefined;
}

export interface Schedule extends Omit<StoredSchedule, "trigger"> {
  trigger: Trigger;
  next?: Preview[];
}

/** Jobs of one task with the same error; numbers and ids in it may differ. */
export interface FailureGroup {
  type: string;
  error: string;
  count: number;
  newest: string;
  example: string;
  newest_at: string;
  oldest_at: string;
}

export interface Failures {
  items: FailureGroup[];
  groups: number;
  total: number;
  is_exact: boolean;
}

/** The outcome, or planned outcome, of an action on dead letters. */
export interface Letters {
  count: number;
  ids: string[];
  refused: { id: string; error: string }[];
  more: boolean;
}

/** How many jobs of a queue may run at once; absent without a limit. */
export interface Limited {
  limit?: number | null;
}

export interface Page<Item> {
  items: Item[];
  next_cursor: string | null;
}
