/** The shapes of the API, as far as the pages read them. */
import type { Json } from "./exact.ts";

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
] as const;
export type Status = (typeof STATUSES)[number];

export type Role = "viewer" | "operator" | "admin";

export interface Failure {
  type: string;
  message: string;
  traceback?: string;
}

export interface Step {
  name: string;
  state: string;
  seconds: number | null;
}

export interface Detail {
  step?: string;
  done?: number;
  total?: number;
  rate?: number;
  steps?: Step[];
}

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

/** A job, whole. */
export interface Job extends JobNews {
  created_at: string;
  run_at: string;
  ready_at: string | null;
  cancel_requested_at: string | null;
  reviewed_at: string | null;
  timeout: string | null;
  expires_at: string | null;
  priority: number;
  occurrence_at: string | null;
  batch: string | null;
  parent: string | null;
  rerun_of: string | null;
  node: string | null;
  blocked_by: string | null;
  parked: string | null;
  reason: string;
  args: Json;
  result: Json;
  error: Failure | null;
}

export interface Attempt {
  attempt: number;
  node: string | null;
  ready_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  outcome: string;
  reason: string | null;
  error: Failure | null;
}

export interface LogLine {
  seq: number;
  at: string;
  attempt: number;
  stream: string;
  level?: string; // debug, info, warning, error or critical; servers before this one did not tell.
  logger?: string | null;
  line: string;
}

export interface HistoryEvent {
  seq: number;
  event: string;
  at: string;
  data: Json;
}

export interface Why {
  id: string;
  status: Status;
  why: string;
  evidence: { [name: string]: Json };
}

export interface Preview {
  instant: string;
  local: string;
  note: string | null;
}

export interface Occurrence {
  schedule: string;
  instant: string;
  until?: string;
  count: number;
  outcome: string;
  reason: string;
  decided_at: string;
  job_id: string | null;
}

/** An occurrence as the list of schedules shows it: a mark with what became of its job. */
export interface Recent {
  at: string;
  /** More than one for a run of equal decisions. */
  count: number;
  outcome: string;
  reason: string;
  job_status: string | null;
  job_id: string | null;
}

/** What was decided on a day, by the clock of the schedule, and how its jobs ended. */
export interface Day {
  day: string;
  outcomes: Readonly<Record<string, number>>;
  ended: Readonly<Record<string, number>>;
}

export interface Calendar {
  year: number;
  days: Day[];
  truncated: boolean;
}

export interface Trigger {
  kind: string;
  expr?: string;
  tz?: string;
  dst?: string;
  [name: string]: Json | undefined;
}

export interface Schedule {
  name: string;
  task: string;
  trigger: Trigger;
  rule: string;
  args: Json;
  tenant: string;
  queue: string;
  priority: number;
  max_attempts: number;
  backoff: string | null;
  tags: string[];
  overlap: string;
  queue_limit: number;
  missed: string;
  deadline: string | null;
  grace: string | null;
  catch_up_limit: number;
  catch_up_rate: string | null;
  jitter: string | null;
  start: string | null;
  end: string | null;
  expect: string | null;
  callback_url: string | null;
  expires: string | null;
  owner: string;
  revision: number;
  created_at: string;
  decided_through: string;
  next_at: string | null;
  paused: boolean;
  pause: { since: string; until: string | null; reason: string; author: string } | null;
  attention: string | null;
  failing: number;
  next?: Preview[];
  recent?: Recent[];
}

export interface Plan {
  name: string;
  action: "create" | "change" | "nothing";
  next: { before: Preview[]; after: Preview[] };
  definition: { [name: string]: Json };
  warnings: string[];
}

export interface Queue {
  name: string;
  pending: number;
  oldest_age_seconds: number;
  running: number;
  /** How many may run at once; none where nobody has set a bound. */
  limit?: number | null;
  paused: boolean;
  paused_at: string | null;
  paused_by: string | null;
  reason: string | null;
}

export interface Worker {
  id: string;
  name: string;
  version: string;
  started_at: string;
  beat_at: string;
  draining: boolean;
  slots: number;
  running: number;
  children: number;
  queues: string[];
  tasks: string[];
}

export interface Node {
  id: string;
  name: string;
  roles: string[];
  version: string;
  started_at: string;
  beat_at: string;
  state: { [name: string]: Json };
}

export interface Leader {
  name: string;
  id: string;
  token: number;
  since: string;
}

export interface Stats {
  store?: { kind: string; version: string; latency_ms: number };
  leader?: Leader | null;
  shards?: (Leader & { role: string })[];
  nodes?: Node[];
  workers?: Worker[];
  queues: Queue[];
  jobs: Partial<Record<Status, number>>;
  schedules: {
    total: number;
    paused: number;
    late: number;
    attention: number;
    next_at: string | null;
    coming: { name: string; tenant?: string; decided_through: string; next_at: string; undecided_seconds: number }[];
    last_day: Record<string, number>;
  };
  oldest_undecided_seconds: number;
  oldest_pending_seconds: number;
  dead: { total: number; tasks: { task: string; letters: number; newest: string; error?: string }[] };
  failing: { schedule: string; failed_in_a_row: number }[];
  degraded: string[];
  at: string;
  tenant: string | null;
  last_hour: {
    CANCELLED: number;
    COMPLETED: number;
    FAILED: number;
    TIMED_OUT: number;
    window_seconds: number;
    per_second: number;
    failure_rate: number;
  };
}

export interface Point {
  at: string;
  completed: number;
  failed: number;
  cancelled: number;
  timed_out: number;
  duration_p50: number | null;
  duration_p95: number | null;
}

/** How jobs ended over time. */
export interface Series {
  since: string;
  until: string;
  step_seconds: number;
  points: Point[];
  truncated: boolean;
}

export interface Count {
  count: number;
  is_exact: boolean;
}

/** What came of many jobs at once, or would. */
export interface Bulk {
  matched: number;
  is_exact: boolean;
  done: number;
  refused: { id: string; reason: string }[];
  more: boolean;
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

export interface Alert {
  code: string;
  target: string | null;
  /** Whose the target is, where it is a schedule. */
  tenant?: string;
  message: string;
  cure: string;
}

export interface Finding {
  schedule: string;
  instant: string;
  count: number;
  reason: string;
}

export interface Audit {
  schedules: number;
  expected: number;
  recorded: number;
  gaps: Finding[];
  duplicates: Finding[];
  phantoms: Finding[];
  ok: boolean;
  since: string;
  until: string;
}

export interface Me {
  name: string;
  tenant: string;
  role: Role;
  token_id: string | null;
}

export interface Token {
  id: string;
  name: string;
  tenant: string;
  role: Role;
  state: string;
  created_at: string;
  created_by: string;
  expires_at: string | null;
  revoked_at: string | null;
}

export interface Webhook {
  id: string;
  tenant: string;
  url: string | null;
  events: string[];
  note: string;
  enabled: boolean;
  disabled_at: string | null;
  created_at: string;
  created_by: string;
  secrets: number;
}

export interface Delivery {
  id: string;
  endpoint: string;
  job: string | null;
  tenant: string;
  event: string;
  url: string;
  status: string;
  tries: number;
  next_at: string | null;
  created_at: string;
  ended_at: string | null;
  outcomes: { at: string; code: number | null; error: string | null; took_ms: number }[];
}

export interface Action {
  at: string;
  actor: string;
  tenant: string | null;
  origin: string;
  action: string;
  target: string;
  detail: Json;
}

export interface Page<Item> {
  items: Item[];
  next_cursor: string | null;
}
