/** Statistics for charts and calendars. */
import { duration, instant, MINUTE } from "./format.ts";
import type { CalendarDay, Job, Point } from "./types.ts";

/** Return a percentile; NaN without values. */
export function quantile(values: readonly number[], share: number): number {
  if (!values.length) return Number.NaN;
  const sorted = [...values].sort((one, other) => one - other);
  const place = (sorted.length - 1) * share;
  const low = Math.floor(place);
  const high = Math.min(sorted.length - 1, low + 1);
  return sorted[low]! + (sorted[high]! - sorted[low]!) * (place - low);
}

export interface Spans {
  /** The start of each step, in seconds. */
  at: number[];
  /** All finished jobs, including failed ones: drawn behind those. */
  ended: number[];
  failed: number[];
  usual: (number | null)[];
  slow: (number | null)[];
  completedInAll: number;
  failedInAll: number;
}

const SHOWN_MIN = 20;

/** Leave out the time before the first job ended: a new store would have a mostly empty chart. */
export function sinceFirst(points: readonly Point[]): readonly Point[] {
  const first = points.findIndex((point) => point.completed + point.failed + point.timed_out > 0);
  return points.slice(Math.max(0, Math.min(first, points.length - SHOWN_MIN)));
}

/** Turn the points of a series into columns; cancelled jobs count neither as failed nor for durations. */
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

/** Count decisions by day; a failed job counts as failed, not as fired. */
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

/** Return the tone of a day, by its worst outcome. */
export function toneOfDay(day: DayCount | undefined): "none" | "bad" | "warn" | "good" | "calm" {
  if (day === undefined) return "none";
  if (day.failed > 0 || day.missed > 0) return "bad";
  if (day.skipped > day.fired) return "warn";
  return day.fired > 0 ? "good" : day.skipped > 0 ? "warn" : "calm";
}

/** The expected maximum duration of a job, and where it comes from. */
export interface Bound {
  ms: number;
  words: string;
}

/** Return the expected maximum duration: that of its schedule, else three times the usual one of its task, else ten minutes. */
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

/** Choose the shortest time range that contains most of the coming runs. */
export function windowFor(aways: readonly number[]): number {
  const windows = [1, 5, 15, 60, 6 * 60, 24 * 60, 7 * 24 * 60].map((minutes) => minutes * MINUTE);
  const wanted = Math.ceil(aways.length * 0.6);
  return windows.find((length) => aways.filter((away) => away <= length).length >= wanted) ?? windows.at(-1)!;
}
