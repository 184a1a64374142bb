/** Describe common triggers in words; the expression itself is always shown beside them. */
import { duration } from "./format.ts";
import type { Trigger } from "./models.ts";

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const MACROS: Readonly<Record<string, string>> = {
  "@yearly": "0 0 1 1 *",
  "@annually": "0 0 1 1 *",
  "@monthly": "0 0 1 * *",
  "@weekly": "0 0 * * 0",
  "@daily": "0 0 * * *",
  "@midnight": "0 0 * * *",
  "@hourly": "0 * * * *",
};

/** Describe a trigger in words; null if the expression itself is clearer. */
export function inWords(trigger: Trigger): string | null {
  switch (trigger.kind) {
    case "cron":
      return trigger["seconds"] === undefined ? cronInWords(trigger.expr ?? "") : null;
    case "every":
      return `every ${spoken(String(trigger["interval"] ?? ""))}`;
    case "after":
      return `${spoken(String(trigger["delay"] ?? ""))} after the last job has ended`;
    case "at":
      return "once";
    default:
      return null;
  }
}

/** Format the trigger itself: the cron expression, or the words of the others. */
export function ruleText(trigger: Trigger): string {
  if (trigger.kind === "cron") return `${trigger["seconds"] === undefined ? "" : `${String(trigger["seconds"])} `}${trigger.expr ?? ""}`;
  if (trigger.kind === "every") return `every ${String(trigger["interval"] ?? "")}`;
  if (trigger.kind === "after") return `after ${String(trigger["delay"] ?? "")}`;
  if (trigger.kind === "at") return `at ${String(trigger["instant"] ?? "")}`;
  return trigger.kind;
}

/** Return the time zone of a trigger; undefined if that makes no difference. */
export function zoneOf(trigger: Trigger): string | undefined {
  return typeof trigger.tz === "string" ? trigger.tz : undefined;
}

function spoken(text: string): string {
  const match = /^(\d+)(ms|s|m|h|d)$/.exec(text);
  if (match === null) return text;
  const words: Record<string, string> = { ms: "millisecond", s: "second", m: "minute", h: "hour", d: "day" };
  const word = words[match[2]!]!;
  return match[1] === "1" ? word : `${match[1]} ${word}s`;
}

/** Describe a cron expression of five fields in words. */
export function cronInWords(expr: string): string | null {
  const fields = (MACROS[expr.trim().toLowerCase()] ?? expr).trim().split(/\s+/);
  if (fields.length !== 5) return null;
  const [minute, hour, day, month, weekday] = fields as [string, string, string, string, string];
  const time = timeInWords(minute, hour);
  const date = dateInWords(day, month, weekday);
  if (time === null || date === null) return null;
  const isClock = time.startsWith("at ");
  if (date === "") return isClock ? `every day ${time}` : time;
  return isClock ? `${date} ${time}` : `${time}, ${date}`;
}

function timeInWords(minute: string, hour: string): string | null {
  if (hour === "*") {
    if (minute === "*") return "every minute";
    if (minute === "0") return "every hour";
    const step = /^(?:\*|0)\/(\d+)$/.exec(minute);
    if (step) return `every ${step[1]} minutes`;
    return isNumber(minute, 59) ? `every hour at minute ${minute}` : null;
  }
  const step = /^(?:\*|0)\/(\d+)$/.exec(hour);
  if (step && isNumber(minute, 59)) return minute === "0" ? `every ${step[1]} hours` : `every ${step[1]} hours at minute ${minute}`;
  const range = /^(\d+)-(\d+)$/.exec(hour);
  if (range) {
    const words = minute === "*" ? "every minute" : minute === "0" ? "every hour" : /^\*\/(\d+)$/.test(minute) ? `every ${minute.slice(2)} minutes` : null;
    return words && `${words} from ${clock(range[1]!, "0")} to ${clock(range[2]!, minute === "0" ? "0" : "59")}`;
  }
  const hours = hour.split(",");
  if (!isNumber(minute, 59) || !hours.every((one) => isNumber(one, 23))) return null;
  return `at ${listed(hours.map((one) => clock(one, minute)))}`;
}

function dateInWords(day: string, month: string, weekday: string): string | null {
  const months = month === "*" ? "" : names(month, MONTHS, 1);
  const weekdays = weekday === "*" || weekday === "?" ? "" : weekday.toLowerCase() === "1-5" || weekday.toLowerCase() === "mon-fri" ? "weekdays" : names(weekday, DAYS, 0);
  if (months === null || weekdays === null) return null;
  const days = day === "*" || day === "?" ? "" : day.toUpperCase() === "L" ? "the last day" : dayNumbers(day);
  if (days === null) return null;
  if (days && weekdays) return null; // "Or" in some programs, "and" in others; the expression is clearer.
  if (weekdays) return (weekdays === "weekdays" ? "on weekdays" : `on ${weekdays}`) + (months ? ` in ${months}` : "");
  if (days) return `on ${days} of ${months || "the month"}`;
  return months ? `every day in ${months}` : "";
}

function dayNumbers(text: string): string | null {
  const parts = text.split(",");
  if (!parts.every((part) => isNumber(part, 31))) return null;
  return `day ${listed(parts.map((part) => String(Number(part))))}`;
}

function names(text: string, known: readonly string[], first: number): string | null {
  const found = text.split(",").map((part) => {
    const ends = part.split("-").map((end) => nameOf(end, known, first));
    if (ends.length > 2 || ends.includes(null)) return null;
    return ends.join(" to ");
  });
  return found.includes(null) ? null : listed(found as string[]);
}

function nameOf(text: string, known: readonly string[], first: number): string | null {
  const short = known.findIndex((name) => name.slice(0, 3).toLowerCase() === text.toLowerCase());
  if (short >= 0) return known[short] ?? null;
  if (!/^\d+$/.test(text)) return null;
  const number = Number(text) - first;
  return known[known === DAYS ? number % 7 : number] ?? null;
}

function isNumber(text: string, most: number): boolean {
  return /^\d{1,2}$/.test(text) && Number(text) <= most;
}

function clock(hour: string, minute: string): string {
  return `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
}

function listed(words: readonly string[]): string {
  if (words.length < 2) return words[0] ?? "";
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** Parse a duration of the API such as `1h30m` or `90s`, in milliseconds; NaN if it is none. */
export function readDuration(text: string): number {
  const sizes: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
  let total = 0;
  const rest = text.replace(/(\d+(?:\.\d+)?)(ms|s|m|h|d|w)/g, (_, number: string, unit: string) => {
    total += Number(number) * sizes[unit]!;
    return "";
  });
  return rest.trim() === "" && text.trim() !== "" ? total : Number.NaN;
}

/** Format a duration of the API like other durations here. */
export function spanText(text: string): string {
  const ms = readDuration(text);
  return Number.isNaN(ms) ? text : duration(ms);
}
