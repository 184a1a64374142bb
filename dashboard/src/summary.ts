/** Figures for charts and calendars: over time, by day, and what is usual. */
import { duration, instant, MINUTE } from "./format.ts";
import type { CalendarDay, Job, Point } from "./types.ts";

/** Return the value below which a share of the values lies; NaN without values. */
export function quantile(values: readonly number[], share: number): number {
  if (!values.length) return Number.NaN;
  const sorted = [...values].sort((one, other) => one - other);
  const place = (sorted.length - 1) * share;
  const low = Math.floor(place);
  const high = Math.min(sorted.length - 1, low + 1);
  return sorted[low]! + (sorted[high]! - sorted[low]!) * (place - low);
}

export interface Spans {
  /** The beginning of each span, in seconds, as charts want it. */
  at: number[];
  /** All that ended, those that failed among them: drawn behind, the two together are as high as there were jobs. */
  ended: number[];
  failed: number[];
  usual: (number | null)[];
  slow: (number | null)[];
  completedInAll: number;
  failedInAll: number;
}

const SHOWN_MIN = 20;

/** Leave out the time before the first job ended: a young store would have an empty chart with an edge. */
export function sinceFirst(points: readonly Point[]): readonly Point[] {
  const first = points.findIndex((point) => point.completed + point.failed + point.timed_out > 0);
  return points.slice(Math.max(0, Math.min(first, points.length - SHOWN_MIN)));
}

/** Turn the points of a series into columns; what was cancelled neither failed nor took its time. */
export function spansOf(points: readonly Point[]): Spans {
  const failed = points.map((point) => point.failed + point.timed_out);
  const sum = (values: readonly number[]): number => values.reduce((one, other) => one + other, 0);
  return {
    at: points.map((point) => instant(point.at) / 1000),
    ended: points.map((point, place) => point.completed + failed[place]!),
    failed,
    usual: points.map((point) => point.duration_p50),
    slow: points.map((point) => point.duration_p95),
    completedInAll: sum(points.map((point) => point.completed)),
    failedInAll: sum(failed),
  };
}

export interface DayCount {
  fired: number;
  failed: number;
  skipped: number;
  missed: number;
  other: number;
}

/** Count what was decided on each day; a job that failed is counted as that, not as fired. */
export function perDay(days: readonly CalendarDay[]): Map<string, DayCount> {
  return new Map(
    days.map(({ day, outcomes, ended }) => {
      const { fired = 0, skipped = 0, missed = 0, ...rest } = outcomes;
      const failed = Math.min(fired, (ended["FAILED"] ?? 0) + (ended["TIMED_OUT"] ?? 0));
      const other = Object.values(rest).reduce((sum, number) => sum + number, 0);
      return [day, { fired: fired - failed, failed, skipped, missed, other }];
    }),
  );
}

/** Say which tone a day has, the worst thing first. */
export function toneOfDay(day: DayCount | undefined): "none" | "bad" | "warn" | "good" | "calm" {
  if (day === undefined) return "none";
  if (day.failed > 0 || day.missed > 0) return "bad";
  if (day.skipped > day.fired) return "warn";
  return day.fired > 0 ? "good" : day.skipped > 0 ? "warn" : "calm";
}

/** How long a job may run before somebody should look, and why that long. */
export interface Bound {
  ms: number;
  words: string;
}

/** Say how long a job may run: what its schedule expects, else three times what is usual for its task, else ten minutes. */
export function boundFor(expected: number | undefined, usual: number | undefined): Bound {
  if (expected) return { ms: expected, words: `expected at most ${duration(expected)}` };
  if (usual) return { ms: Math.max(usual * 3, 10_000), words: `usual: ${duration(usual)}` };
  return { ms: 10 * MINUTE, words: "" };
}

/** Find the running jobs that take longer than they should, the longest first. */
export function overdue(running: readonly Job[], boundOf: (job: Job) => Bound, now: number): { job: Job; ran: number; words: string }[] {
  const found: { job: Job; ran: number; words: string }[] = [];
  for (const job of running) {
    const ran = now - instant(job.started_at);
    const { ms, words } = boundOf(job);
    if (ran > ms) found.push({ job, ran, words });
  }
  return found.sort((one, other) => other.ran - one.ran);
}

/** Choose the shortest window that shows most of what comes next. */
export function windowFor(aways: readonly number[]): number {
  const windows = [1, 5, 15, 60, 6 * 60, 24 * 60, 7 * 24 * 60].map((minutes) => minutes * MINUTE);
  const wanted = Math.ceil(aways.length * 0.6);
  return windows.find((length) => aways.filter((away) => away <= length).length >= wanted) ?? windows.at(-1)!;
}
