/** Figures made of jobs and occurrences: per minute, per day, and what is usual. */
import { dateIn, DAY, instant, MINUTE } from "./format.ts";
import type { Job, JobNews, Occurrence } from "./types.ts";

/** Return the value below which a share of the values lies; NaN without values. */
export function quantile(values: readonly number[], share: number): number {
  if (!values.length) return Number.NaN;
  const sorted = [...values].sort((one, other) => one - other);
  const place = (sorted.length - 1) * share;
  const low = Math.floor(place);
  const high = Math.min(sorted.length - 1, low + 1);
  return sorted[low]! + (sorted[high]! - sorted[low]!) * (place - low);
}

export interface Ended {
  id: string;
  at: number;
  took: number;
  isGood: boolean;
}

/** Say how a job ended; null when it has not, or was cancelled. */
export function endedOf(job: JobNews): Ended | null {
  const at = instant(job.finished_at);
  if (Number.isNaN(at) || job.status === "CANCELLED") return null;
  const took = at - instant(job.started_at);
  return { id: job.id, at, took: Number.isNaN(took) ? 0 : Math.max(0, took), isGood: job.status === "COMPLETED" };
}

export interface Minutes {
  /** The beginning of each minute, in seconds, as charts want it. */
  at: number[];
  good: number[];
  bad: number[];
  usual: (number | null)[];
  slow: (number | null)[];
}

/** Count what ended in each minute of a window, with the median and the 95th percentile of how long it took. */
export function perMinute(ended: Iterable<Ended>, from: number, to: number): Minutes {
  const first = Math.floor(from / MINUTE);
  const number = Math.max(1, Math.floor(to / MINUTE) - first + 1);
  const buckets = Array.from({ length: number }, (): Ended[] => []);
  for (const one of ended) buckets[Math.floor(one.at / MINUTE) - first]?.push(one);
  const times = buckets.map((bucket) => bucket.filter((one) => one.isGood).map((one) => one.took / 1000));
  const orNull = (value: number): number | null => (Number.isNaN(value) ? null : value);
  return {
    at: buckets.map((_, place) => (first + place) * 60),
    good: buckets.map((bucket) => bucket.filter((one) => one.isGood).length),
    bad: buckets.map((bucket) => bucket.filter((one) => !one.isGood).length),
    usual: times.map((values) => orNull(quantile(values, 0.5))),
    slow: times.map((values) => orNull(quantile(values, 0.95))),
  };
}

export interface DayCount {
  date: string;
  fired: number;
  failed: number;
  skipped: number;
  missed: number;
  other: number;
}

/** Count what was decided on each day, by the clock of the schedule. */
export function perDay(occurrences: readonly Occurrence[], failedJobs: ReadonlySet<string>, zone: string | undefined): Map<string, DayCount> {
  const days = new Map<string, DayCount>();
  const dayOf = (at: number): DayCount => {
    const date = dateIn(at, zone);
    let day = days.get(date);
    if (day === undefined) {
      day = { date, fired: 0, failed: 0, skipped: 0, missed: 0, other: 0 };
      days.set(date, day);
    }
    return day;
  };
  for (const one of occurrences) {
    const shares = spread(instant(one.instant), one.until ? instant(one.until) : Number.NaN, one.count);
    for (const [at, number] of shares) {
      const day = dayOf(at);
      if (one.job_id !== null && failedJobs.has(one.job_id)) day.failed += number;
      else if (one.outcome === "fired") day.fired += number;
      else if (one.outcome === "skipped") day.skipped += number;
      else if (one.outcome === "missed") day.missed += number;
      else day.other += number;
    }
  }
  return days;
}

/** Spread a run of equal decisions over its days. */
function spread(from: number, until: number, number: number): [number, number][] {
  if (Number.isNaN(until) || until - from < DAY || number < 2) return [[from, number]];
  const days = Math.min(number, Math.floor((until - from) / DAY) + 1, 400);
  const each = Math.floor(number / days);
  const extra = number - each * days;
  return Array.from({ length: days }, (_, place): [number, number] => [from + place * DAY, each + (place < extra ? 1 : 0)]);
}

/** Say which tone a day has, the worst thing first. */
export function toneOfDay(day: DayCount | undefined): "none" | "bad" | "warn" | "good" | "calm" {
  if (day === undefined) return "none";
  if (day.failed > 0 || day.missed > 0) return "bad";
  if (day.skipped > day.fired) return "warn";
  return day.fired > 0 ? "good" : day.skipped > 0 ? "warn" : "calm";
}

/** Find the running jobs that take longer than they should: beyond what is expected, or far beyond what is usual. */
export function overdue(running: readonly Job[], usualOf: (job: Job) => number, now: number): { job: Job; ran: number; usual: number }[] {
  const found: { job: Job; ran: number; usual: number }[] = [];
  for (const job of running) {
    const ran = now - instant(job.started_at);
    const usual = usualOf(job);
    const bound = Number.isNaN(usual) ? 10 * MINUTE : Math.max(usual * 3, 10_000);
    if (ran > bound) found.push({ job, ran, usual });
  }
  return found.sort((one, other) => other.ran - one.ran);
}

/** Choose the shortest window that shows most of what comes next. */
export function windowFor(aways: readonly number[]): number {
  const windows = [1, 5, 15, 60, 6 * 60, 24 * 60, 7 * 24 * 60].map((minutes) => minutes * MINUTE);
  const wanted = Math.ceil(aways.length * 0.6);
  return windows.find((length) => aways.filter((away) => away <= length).length >= wanted) ?? windows.at(-1)!;
}
