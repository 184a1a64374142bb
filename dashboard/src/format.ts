/** Format numbers, times and texts. Pure functions. */

export const SECOND = 1000;
export const MINUTE = 60 * SECOND;
export const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

const UNITS: readonly (readonly [string, number])[] = [
  ["y", 365 * DAY],
  ["d", DAY],
  ["h", HOUR],
  ["m", MINUTE],
  ["s", SECOND],
];

/** Format a duration with its two largest parts: `4m 12s`, `0.5s`, `3d 2h`. */
export function duration(ms: number): string {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < 1) return "0s";
  if (ms < 100) return `${Math.round(ms)}ms`;
  if (ms < 10 * SECOND) return `${trimmed((ms / SECOND).toFixed(1))}s`;
  let rest = Math.round(ms / SECOND) * SECOND;
  const parts: string[] = [];
  for (const [name, size] of UNITS) {
    const number = Math.floor(rest / size);
    rest -= number * size;
    if (number > 0) parts.push(`${number}${name}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

function trimmed(text: string): string {
  return text.endsWith(".0") ? text.slice(0, -2) : text;
}

/** Format a time relative to now, in one part: `12s ago`, `in 4m`, `now`. */
export function relative(at: number, now: number): string {
  const away = at - now;
  const size = Math.abs(away);
  if (size < SECOND) return "now";
  const [name, unit] = UNITS.find(([, length]) => size >= length) ?? ["s", SECOND];
  const words = `${Math.floor(size / unit)}${name}`;
  return away > 0 ? `in ${words}` : `${words} ago`;
}

/** Format a countdown, with two parts if the first alone is too coarse: `in 1m 05s`. */
export function countdown(at: number, now: number): string {
  const away = at - now;
  if (away < SECOND) return "now";
  if (away < HOUR && away >= MINUTE) {
    const seconds = Math.floor((away % MINUTE) / SECOND);
    return `in ${Math.floor(away / MINUTE)}m ${String(seconds).padStart(2, "0")}s`;
  }
  return away >= HOUR ? `in ${duration(away)}` : relative(at, now);
}

/** Format the time left as the job estimates it: `about 4m 12s left`; empty once that time has passed. */
export function timeLeft(at: string | null | undefined, now: number): string {
  const left = instant(at) - now;
  return left > 0 ? `about ${duration(Math.ceil(left / SECOND) * SECOND)} left` : "";
}

const SIZES: Readonly<Record<string, number>> = { d: DAY, h: HOUR, m: MINUTE, s: SECOND, ms: 1, us: 0.001 };

/** Parse a duration of the API, such as `1h30m`, to milliseconds. */
export function span(text: string): number {
  return [...text.matchAll(/(\d+)(ms|us|[dhms])/g)].reduce((sum, [, number, unit]) => sum + Number(number) * SIZES[unit!]!, 0);
}

/** Parse a time of the API; NaN if there is none. */
export function instant(text: string | null | undefined): number {
  return text ? Date.parse(text) : Number.NaN;
}

/** Format date and time in a time zone: `2027-03-28 03:00:00 +02:00`. */
export function inZone(at: number, zone: string | undefined): string {
  const parts = partsIn(at, zone);
  if (parts === null) return "";
  const offset = parts.utcMs - Math.floor(at / SECOND) * SECOND;
  return `${parts.date} ${parts.time} ${offsetText(offset)}`;
}

/** Return the date of a time in a time zone: `2027-03-28`. */
export function dateIn(at: number, zone: string | undefined): string {
  return partsIn(at, zone)?.date ?? "";
}

const formatters = new Map<string, Intl.DateTimeFormat | null>();

function partsIn(at: number, zone: string | undefined): { date: string; time: string; utcMs: number } | null {
  const name = zone ?? "";
  let format = formatters.get(name);
  if (format === undefined) {
    format = formatterOf(zone);
    formatters.set(name, format);
  }
  if (format === null || !Number.isFinite(at)) return null;
  const found: Record<string, string> = {};
  for (const part of format.formatToParts(at)) found[part.type] = part.value;
  const { year = "", month = "", day = "", hour = "", minute = "", second = "" } = found;
  const utcMs = Date.UTC(+year, +month - 1, +day, +hour, +minute, +second);
  return { date: `${year.padStart(4, "0")}-${month}-${day}`, time: `${hour}:${minute}:${second}`, utcMs };
}

function formatterOf(zone: string | undefined): Intl.DateTimeFormat | null {
  try {
    return new Intl.DateTimeFormat("en-GB", {
      ...(zone === undefined ? {} : { timeZone: zone }),
      hourCycle: "h23",
      year: "numeric",
      month: "2-digit",
      day: "2-digit",
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
    });
  } catch {
    return null; // The browser does not know the zone.
  }
}

function offsetText(offset: number): string {
  if (offset === 0) return "Z";
  const minutes = Math.round(Math.abs(offset) / MINUTE);
  const two = (number: number): string => String(number).padStart(2, "0");
  return `${offset < 0 ? "-" : "+"}${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`;
}

/** Format a number with thousands separators. */
export function count(number: number): string {
  return number.toLocaleString("en-US");
}

/** Format a number with its noun: `1 job`, `2,000 jobs`. */
export function counted(number: number, word: string, many = `${word}s`): string {
  return `${count(number)} ${number === 1 ? word : many}`;
}

/** Format a share: `0.06%`, `12%`. */
export function percent(share: number): string {
  const value = share * 100;
  if (value === 0) return "0%";
  if (value < 0.01) return "< 0.01%";
  return `${trimmed(value < 1 ? value.toFixed(2) : value.toFixed(value < 10 ? 1 : 0))}%`;
}

/** Format a rate: `42/s`, `3.5/min`. */
export function rate(perSecond: number): string {
  if (perSecond >= 10) return `${count(Math.round(perSecond))}/s`;
  if (perSecond >= 1) return `${trimmed(perSecond.toFixed(1))}/s`;
  if (perSecond * 60 >= 0.1) return `${trimmed((perSecond * 60).toFixed(1))}/min`;
  return perSecond > 0 ? `${trimmed((perSecond * 3600).toFixed(1))}/h` : "0/s";
}

/** Shorten an id to its kind and its last six characters. */
export function shortId(id: string): string {
  const under = id.indexOf("_");
  return id.length - under > 8 ? `…${id.slice(-6)}` : id;
}

/** Truncate a text that is too long for a line. */
export function clip(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Quote any text as one word for a shell. */
export function shellWord(text: string): string {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text)) return text;
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// Invisible characters that change the display: they are escaped, so that a log line shows its real content.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Format the attempt of a job: `2/3`, or `5 (1 of 3 failed)` if some did not count. */
export function tries(job: { attempts: number; failures: number; max_attempts: number }): string {
  const isPlain = job.attempts <= job.max_attempts && (job.failures === job.attempts || job.failures === job.attempts - 1);
  return isPlain ? `${job.attempts}/${job.max_attempts}` : `${job.attempts} (${job.failures} of ${job.max_attempts} failed)`;
}

/** Escape control characters and bidirectional marks. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Return a URL that may be a link: http and https only. */
export function safeUrl(text: string): string | null {
  if (!/^https?:\/\//i.test(text) || text.length > 2048) return null;
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}
