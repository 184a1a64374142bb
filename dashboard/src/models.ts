/** What the pages read beyond the generated types: live news of jobs, triggers, pages of lists. */
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

/** What the stream tells of a job. */
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

/** Jobs of one task that failed alike; numbers and ids in their errors may differ. */
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

/** What was done to dead letters, or would be. */
export interface Letters {
  count: number;
  ids: string[];
  refused: { id: string; error: string }[];
  more: boolean;
}

/** How many jobs of a queue may run at once; absent where no limit is set. */
export interface Limited {
  limit?: number | null;
}

export interface Page<Item> {
  items: Item[];
  next_cursor: string | null;
}
