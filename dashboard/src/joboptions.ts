/** The options that a job was enqueued with, as far as the job shows them: from the fields of the request, so a new one needs nothing here. */
import type { Options } from "./cli.ts";
import { ExactNumber, type Json } from "./exact.ts";
import { NEW_JOB_FIELDS, type Job } from "./types.ts";

type Option = (typeof NEW_JOB_FIELDS)[number];
export type JobOptions = { [name in Option]?: Json };

/** A new job has its own: the arguments are typed, a key names one job, metadata may be masked, and run_at is past. */
const OWN: ReadonlySet<Option> = new Set<Option>(["args", "key", "metadata", "run_at"]);
/** Options that the page of a job shows in its own words. */
const SHOWN: ReadonlySet<Option> = new Set<Option>(["type", "queue", "priority", "tenant", "max_attempts", "timeout", "tags"]);
const FLAGS: JobFlags = { tags: "tag", timeout: "job-timeout", needs: "need", labels: "label" };
type JobFlags = { readonly [name in Option]?: string };

/** Return the options that another job like this one is given. */
export function optionsOf(job: Job, withTenant: boolean): JobOptions {
  const values = job as unknown as JobOptions;
  const kept = NEW_JOB_FIELDS.filter((name) => !OWN.has(name) && (values[name] ?? null) !== null && (name !== "tenant" || withTenant));
  return Object.fromEntries(kept.map((name) => [name, values[name]]));
}

/** Return the same as options of the command line, but for the task, which is an argument there. */
export function jobFlags(options: JobOptions): Options {
  const named = Object.entries(options).filter(([name]) => name !== "type") as [Option, Json][];
  return Object.fromEntries(named.map(([name, value]) => [FLAGS[name] ?? name.replaceAll("_", "-"), flagOf(value)]));
}

/** Write a value as a flag takes it: an object as `name=value`, several times. */
function flagOf(value: Json): string | string[] {
  if (Array.isArray(value)) return value.map(String);
  if (value !== null && typeof value === "object" && !(value instanceof ExactNumber)) return Object.entries(value).map(([name, one]) => `${name}=${String(one)}`);
  return String(value);
}

/** Return the options that the page of a job does not show in its own words, each with a title. */
export function otherOptions(job: Job): [string, Json][] {
  const others = Object.entries(optionsOf(job, false)).filter(([name]) => !SHOWN.has(name as Option)) as [string, Json][];
  return others.map(([name, value]) => [name[0]!.toUpperCase() + name.slice(1).replaceAll("_", " "), value]);
}
