/** The filters of the list of jobs: in the address, in the fields, and as words in the search field. */
import { DAY, HOUR, MINUTE } from "./format.ts";
import { STATUSES } from "./models.ts";

export const FIELDS = ["status", "type", "queue", "tenant", "schedule", "tag", "key", "batch", "rerun_of", "since", "until", "ended", "q"] as const;
export type Filters = Partial<Record<(typeof FIELDS)[number], string>>;

const WORDS: Readonly<Record<string, (typeof FIELDS)[number]>> = {
  status: "status",
  state: "status",
  is: "status",
  task: "type",
  type: "type",
  queue: "queue",
  tenant: "tenant",
  schedule: "schedule",
  tag: "tag",
  key: "key",
  batch: "batch",
  since: "since",
  until: "until",
  ended: "ended",
};

/** Parse the filters from an address. */
export function filtersOf(query: Readonly<Record<string, string>>): Filters {
  const found: Filters = {};
  for (const name of FIELDS) if (query[name]) found[name] = query[name];
  return found;
}

/** Parse the search text: `status:failed task:report since:24h some text`, with quotes if a value has spaces. */
export function readWords(text: string): Filters {
  const found: Filters = {};
  const rest: string[] = [];
  for (const match of text.matchAll(/([a-z]+):(?:"([^"]*)"|(\S+))|"([^"]*)"|(\S+)/gi)) {
    const field = match[1] === undefined ? undefined : WORDS[match[1].toLowerCase()];
    const value = match[2] ?? match[3] ?? "";
    if (field !== undefined && value !== "") found[field] = field === "status" ? statusOf(value) : value;
    else rest.push(match[4] ?? match[0]);
  }
  if (rest.length) found.q = rest.join(" ");
  return found;
}

function statusOf(value: string): string {
  const word = value.toUpperCase().replaceAll("-", "_");
  if (word === "WAITING") return "PENDING";
  return STATUSES.find((status) => status === word) ?? STATUSES.find((status) => status.startsWith(word)) ?? word;
}

const SIZES: Readonly<Record<string, number>> = { m: MINUTE, h: HOUR, d: DAY, w: 7 * DAY };

/** Turn `24h` into a time; a time is returned unchanged. */
export function sinceTime(text: string | undefined, now: number): string | undefined {
  if (!text) return undefined;
  const match = /^(\d{1,6})([mhdw])$/.exec(text);
  if (match) return new Date(now - Number(match[1]) * SIZES[match[2]!]!).toISOString();
  const at = Date.parse(text);
  return Number.isNaN(at) ? undefined : new Date(at).toISOString();
}

/** Convert filters for the API. Relative times are resolved now. */
export function queryOf({ since, until, ended, ...rest }: Filters, now: number): Record<string, string> {
  const found: Record<string, string | undefined> = { ...rest, created_after: sinceTime(since, now), created_before: sinceTime(until, now), finished_after: sinceTime(ended, now) };
  return Object.fromEntries(Object.entries(found).filter((pair): pair is [string, string] => Boolean(pair[1])));
}

const FLAGS: Readonly<Record<string, string>> = { type: "task", q: "text" };

/** Convert such a query to options of the command line. */
export function flagsOf(query: Readonly<Record<string, string | undefined>>): Record<string, string | undefined> {
  return Object.fromEntries(Object.entries(query).map(([name, value]) => [FLAGS[name] ?? name.replaceAll("_", "-"), value]));
}
