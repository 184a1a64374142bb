/** Convert definitions of schedules between the API and the form. */
import type { Options } from "./cli.ts";
import { parseExact, writeExact, type Json } from "./exact.ts";
import type { Schedule, Trigger } from "./models.ts";

export interface Draft {
  name: string;
  task: string;
  kind: string;
  rule: string;
  tz: string;
  dst: string;
  args: string;
  tenant: string;
  queue: string;
  max_attempts: string;
  backoff: string;
  overlap: string;
  missed: string;
  deadline: string;
  jitter: string;
  expect: string;
  priority: string;
  tags: string;
}

export const EMPTY: Draft = {
  name: "",
  task: "",
  kind: "cron",
  rule: "0 6 * * *",
  tz: "UTC",
  dst: "shift",
  args: "{}",
  tenant: "",
  queue: "",
  max_attempts: "",
  backoff: "",
  overlap: "skip",
  missed: "latest",
  deadline: "",
  jitter: "",
  expect: "",
  priority: "",
  tags: "",
};

const RULES: Readonly<Record<string, string>> = { cron: "expr", every: "interval", after: "delay", at: "instant" };

/** Make an editable draft of a schedule. */
export function draftOf(schedule: Schedule): Draft {
  const { trigger } = schedule;
  return {
    name: schedule.name,
    task: schedule.task,
    kind: trigger.kind,
    rule: String(trigger[RULES[trigger.kind] ?? "expr"] ?? ""),
    tz: trigger.tz ?? "UTC",
    dst: trigger.dst ?? "shift",
    args: writeExact(schedule.args, 2),
    tenant: schedule.tenant,
    queue: schedule.queue,
    max_attempts: String(schedule.max_attempts),
    backoff: schedule.backoff ?? "",
    overlap: schedule.overlap,
    missed: schedule.missed,
    deadline: schedule.deadline ?? "",
    jitter: schedule.jitter ?? "",
    expect: schedule.expect ?? "",
    priority: String(schedule.priority),
    tags: schedule.tags.join(", "),
  };
}

// Fields that the form does not show are kept.
const KEPT = ["queue_limit", "grace", "catch_up_limit", "catch_up_rate", "start", "end", "callback_url", "expires", "limit", "needs", "labels", "version"] as const;

/** Build the PUT body of a draft, with the arguments verbatim. Throws if they are not a JSON object. */
export function bodyOf(draft: Draft, before: Schedule | null): string {
  JSON.parse(draft.args || "{}");
  const args = parseExact(draft.args || "{}");
  if (args === null || typeof args !== "object" || Array.isArray(args)) throw new Error("the arguments are one JSON object");
  const body: { [name: string]: Json } = { task: draft.task.trim(), trigger: triggerOf(draft, before) as { [name: string]: Json } };
  for (const name of ["tenant", "queue", "backoff", "overlap", "missed", "deadline", "jitter", "expect"] as const) {
    const value = draft[name].trim();
    if (value) body[name] = value;
  }
  for (const name of ["max_attempts", "priority"] as const) if (draft[name].trim()) body[name] = Number(draft[name]);
  const tags = tagsOf(draft);
  if (tags.length) body["tags"] = tags;
  if (before !== null) for (const name of KEPT) if (before[name] !== null) body[name] = before[name];
  return `${writeExact(body).slice(0, -1)},"args":${draft.args.trim() || "{}"}}`;
}

function tagsOf(draft: Draft): string[] {
  return draft.tags.split(",").map((tag) => tag.trim()).filter(Boolean);
}

function triggerOf(draft: Draft, before: Schedule | null): Trigger {
  const field = RULES[draft.kind] ?? "expr";
  const isSame = before !== null && before.trigger.kind === draft.kind;
  const kept: Trigger = isSame ? { ...before.trigger } : { kind: draft.kind };
  const made: Trigger = { ...kept, kind: draft.kind, [field]: draft.rule.trim() };
  if (draft.kind === "cron") return { ...made, tz: draft.tz.trim() || "UTC", dst: draft.dst };
  if (draft.kind === "at" && draft.tz.trim()) return { ...made, tz: draft.tz.trim() };
  return made;
}

/** List the changes of a draft, field by field. */
export function changesOf(draft: Draft, before: Schedule): [string, string, string][] {
  const old = draftOf(before);
  return (Object.keys(EMPTY) as (keyof Draft)[]).filter((name) => old[name].trim() !== draft[name].trim()).map((name) => [name, old[name], draft[name]]);
}

/** Build the command that is equivalent to the PUT of a draft. */
export function putWords(draft: Draft, before: Schedule | null): [string[], Options] {
  const isCron = draft.kind === "cron";
  const seconds = isCron && before?.trigger.kind === "cron" ? before.trigger["seconds"] : undefined;
  const options: Record<string, string | true | readonly string[] | undefined> = {
    task: draft.task.trim() || "TASK",
    [draft.kind]: draft.rule.trim(),
    tz: (isCron && draft.tz.trim() !== "UTC") || draft.kind === "at" ? draft.tz.trim() : undefined,
    dst: isCron && draft.dst !== "shift" ? draft.dst : undefined,
    seconds: seconds === undefined || seconds === null ? undefined : String(seconds),
    args: draft.args.trim() && draft.args.trim() !== "{}" ? draft.args.replace(/\s*\n\s*/g, " ").trim() : undefined,
    overlap: draft.overlap === "skip" ? undefined : draft.overlap,
    missed: draft.missed === "latest" ? undefined : draft.missed,
    jitter: draft.jitter === "0s" ? undefined : draft.jitter.trim(),
    tag: tagsOf(draft),
  };
  for (const name of ["deadline", "expect", "queue", "priority", "max_attempts", "backoff", "tenant"] as const) options[name.replace("_", "-")] = draft[name].trim();
  if (before !== null) for (const name of KEPT) if (before[name] !== null) options[name.replaceAll("_", "-")] = String(before[name]);
  if (before?.owner) options["force"] = true;
  return [["schedules", "put", draft.name.trim() || "NAME"], options];
}
