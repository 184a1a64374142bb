import assert from "node:assert/strict";
import { test } from "node:test";
import { apiUrl, problemOf, wordsOf } from "../src/api.ts";
import { rowsOf } from "../src/attempts.tsx";
import { bodyOf, changesOf, draftOf, EMPTY } from "../src/definition.ts";
import { filtersOf, flagsOf, queryOf, readWords, sinceTime } from "../src/filters.ts";
import { boundOf } from "../src/pages/queues.tsx";
import { stateOf, troubledFirst } from "../src/pages/schedules.tsx";
import { jobFlags, optionsOf, otherOptions } from "../src/joboptions.ts";
import { joined, stateOfRecent, summaryOf } from "../src/recent.tsx";
import { href, readHash } from "../src/router.ts";
import { checkArgs } from "../src/runagain.tsx";
import { lookOf } from "../src/statuses.ts";
import { boundFor, overdue, perDay, quantile, sinceFirst, spansOf, toneOfDay, windowFor } from "../src/summary.ts";
import { framesOf } from "../src/trace.ts";
import type { Schedule } from "../src/models.ts";
import type { Attempt, Job, Occurrence, Recent } from "../src/types.ts";
import { job } from "./samples.ts";

test("addresses survive what names may have in them", () => {
  for (const name of ["a/b", "100%", "x?y=z#w", "ünïcode", "a b", "..", "&=+"]) {
    const found = readHash(href(["schedules", name], { q: name, empty: "", none: undefined }));
    assert.deepEqual(found.path, ["schedules", name]);
    assert.deepEqual({ ...found.query }, { q: name });
  }
  assert.deepEqual(readHash("").path, []);
  assert.deepEqual(readHash("#/jobs/%E0%A4%A").path, ["jobs", "%E0%A4%A"]);
  assert.equal(readHash("#/jobs?__proto__=x").query["constructor"], undefined);
});

test("addresses of the API are relative and encoded", () => {
  assert.equal(apiUrl(["schedules", "a/b?c", "pause"], { n: 5, empty: "", none: undefined }), "api/schedules/a%2Fb%3Fc/pause?n=5");
});

test("refusals become words", () => {
  const known = problemOf(409, '{"error":{"code":"conflict","message":"the job has ended","hint":"retry it"},"request_id":"req_1"}');
  assert.equal(known.message, "The job has ended.");
  assert.equal(wordsOf(known), "The job has ended. Retry it.");
  assert.equal(problemOf(503, "<html>busy</html>", "3").message, "The server responded with 503. Try again in 3 s.");
  assert.equal(wordsOf("?"), "Something went wrong.");
});

test("filters are read from words and from addresses", () => {
  assert.deepEqual(readWords('status:failed task:report since:24h "two words" rest'), { status: "FAILED", type: "report", since: "24h", q: "two words rest" });
  assert.deepEqual(readWords('queue:"a b" http://x'), { queue: "a b", q: "http://x" });
  assert.deepEqual(readWords("is:waiting"), { status: "PENDING" });
  assert.deepEqual(readWords("status:timed"), { status: "TIMED_OUT" });
  assert.deepEqual(filtersOf({ status: "FAILED", cursor: "x", type: "" }), { status: "FAILED" });
  const now = Date.parse("2027-01-02T00:00:00Z");
  assert.equal(sinceTime("24h", now), "2027-01-01T00:00:00.000Z");
  assert.equal(sinceTime("2027-01-01T00:00:00Z", now), "2027-01-01T00:00:00.000Z");
  assert.equal(sinceTime("never", now), undefined);
});

test("filters become a query and options of the command line", () => {
  const now = Date.parse("2027-01-02T00:00:00Z");
  const query = queryOf({ type: "report", since: "24h", until: "2027-01-01T12:00:00Z", ended: "1h", tag: "" }, now);
  assert.deepEqual(query, { type: "report", created_after: "2027-01-01T00:00:00.000Z", created_before: "2027-01-01T12:00:00.000Z", finished_after: "2027-01-01T23:00:00.000Z" });
  assert.deepEqual(flagsOf({ type: "report", rerun_of: "job_1", q: "x" }), { task: "report", "rerun-of": "job_1", text: "x" });
});

test("a series becomes columns, and what was cancelled is no failure", () => {
  const point = { at: "2027-01-01T00:00:00Z", completed: 3, failed: 1, cancelled: 7, timed_out: 2, duration_p50: 1.5, duration_p95: null };
  const spans = spansOf([point, { ...point, completed: 1, failed: 0, timed_out: 0 }]);
  assert.deepEqual(spans.ended, [6, 1]);
  assert.deepEqual(spans.failed, [3, 0]);
  assert.deepEqual([spans.completedInAll, spans.failedInAll], [4, 3]);
  assert.equal(spans.at[0], Date.parse(point.at) / 1000);
  assert.deepEqual(spans.slow, [null, null]);
  assert.deepEqual(spansOf([]).ended, []);
  const none = { ...point, completed: 0, failed: 0, timed_out: 0 };
  assert.equal(sinceFirst([...Array(50).fill(none), ...Array(30).fill(point)]).length, 30);
  assert.equal(sinceFirst([...Array(50).fill(none), point]).length, 20);
  assert.equal(sinceFirst([none, none]).length, 2);
  assert.equal(sinceFirst([]).length, 0);
  assert.ok(Number.isNaN(quantile([], 0.5)));
  assert.equal(quantile([1, 2, 3, 4], 0.5), 2.5);
});

test("days by the clock of the schedule", () => {
  const days = perDay([
    { day: "2027-01-01", outcomes: { fired: 3, coalesced: 2, paused: 1 }, ended: { COMPLETED: 3 } },
    { day: "2027-01-02", outcomes: { fired: 2, skipped: 1 }, ended: { FAILED: 1, TIMED_OUT: 1, COMPLETED: 1 } },
    { day: "2027-01-03", outcomes: { skipped: 10 }, ended: {} },
    { day: "2027-01-04", outcomes: { paused: 4 }, ended: { FAILED: 1 } },
  ]);
  assert.deepEqual(days.get("2027-01-01"), { fired: 3, failed: 0, skipped: 0, missed: 0, other: 3 });
  assert.deepEqual(days.get("2027-01-02"), { fired: 0, failed: 2, skipped: 1, missed: 0, other: 0 });
  assert.deepEqual(["2027-01-01", "2027-01-02", "2027-01-03", "2027-01-04", "2027-01-05"].map((day) => toneOfDay(days.get(day))), ["good", "bad", "warn", "calm", "none"]);
});

test("what takes too long is found by what is usual", () => {
  const now = Date.parse("2027-01-01T00:05:00Z");
  const within = (expected?: number, usual?: number) => overdue([job("a")], () => boundFor(expected, usual), now);
  assert.equal(within(undefined, 200_000).length, 0);
  assert.deepEqual(within(undefined, 60_000).map(({ ran, words }) => [ran, words]), [[300_000, "usual: 1m"]]);
  assert.deepEqual(within(240_000, 60_000).map(({ words }) => words), ["expected at most 4m"]);
  assert.equal(within(400_000, 60_000).length, 0);
  assert.equal(within().length, 0);
  assert.equal(overdue([job("a")], () => boundFor(undefined, undefined), now + 600_000).length, 1);
  assert.equal(windowFor([1_000, 30_000, 86_400_000]), 60_000);
  assert.equal(windowFor([]), 60_000);
});

test("attempts on one line of time", () => {
  const attempt = (number: number, ready: number, started: number, ended: number): Attempt => ({ attempt: number, node: null, ready_at: new Date(ready).toISOString(), started_at: new Date(started).toISOString(), ended_at: new Date(ended).toISOString(), outcome: "failed", reason: null, error: null });
  const running = job("a", { attempts: 2, ready_at: new Date(10_000).toISOString(), started_at: new Date(11_000).toISOString() });
  const rows = rowsOf(running, [attempt(1, 0, 1_000, 4_000)], 20_000);
  assert.deepEqual(rows.map((row) => [row.number, row.waited, row.ran, row.held]), [[1, 1_000, 3_000, 6_000], [2, 1_000, 9_000, 0]]);
  const over = rowsOf(job("a", { status: "FAILED", attempts: 1 }), [attempt(1, 0, 1_000, 4_000)], 20_000);
  assert.deepEqual(over.map((row) => [row.ran, row.held]), [[3_000, 0]]);
});

const SCHEDULE: Schedule = { name: "daily", task: "report", trigger: { kind: "cron", expr: "0 6 * * *", tz: "Europe/Berlin", dst: "shift" }, rule: "", args: { n: 1 }, tenant: "default", queue: "default", priority: 0, max_attempts: 1, backoff: null, tags: ["a"], overlap: "skip", queue_limit: 1, missed: "latest", deadline: null, grace: "1m", catch_up_limit: 100, catch_up_rate: null, jitter: "0s", start: null, end: null, expect: null, callback_url: null, expires: null, limit: null, needs: null, labels: null, version: null, owner: "", revision: 1, created_at: "", decided_through: "", next_at: "2027-01-01T00:00:00Z", paused: false, pause: null, attention: null, failing: 0 };

test("a definition goes through the form unchanged, and its arguments keep their digits", () => {
  const draft = draftOf(SCHEDULE);
  assert.deepEqual(changesOf(draft, SCHEDULE), []);
  const body = JSON.parse(bodyOf(draft, SCHEDULE)) as Record<string, unknown>;
  assert.deepEqual(body["trigger"], SCHEDULE.trigger);
  assert.equal(body["grace"], "1m");
  assert.ok(!("expect" in body));
  const changed = { ...draft, rule: "0 7 * * *", args: '{"n": 12345678901234567890}' };
  assert.deepEqual(changesOf(changed, SCHEDULE).map(([name]) => name), ["rule", "args"]);
  assert.ok(bodyOf(changed, SCHEDULE).includes("12345678901234567890"));
  assert.throws(() => bodyOf({ ...EMPTY, args: "[1]" }, null));
  assert.throws(() => bodyOf({ ...EMPTY, args: "{" }, null));
  const every = JSON.parse(bodyOf({ ...EMPTY, task: "t", kind: "every", rule: "5m" }, null)) as Record<string, unknown>;
  assert.deepEqual(every["trigger"], { kind: "every", interval: "5m" });
});

test("what needs somebody comes first", () => {
  const at = Date.parse("2027-01-01T00:00:05Z");
  const late = { ...SCHEDULE, name: "late", next_at: "2026-12-31T23:00:00Z" };
  const held = { ...SCHEDULE, name: "held", attention: "no such zone" };
  const paused = { ...late, name: "paused", paused: true };
  assert.equal(stateOf(SCHEDULE, at), "on");
  assert.equal(stateOf(late, at), "late");
  assert.equal(stateOf(paused, at), "paused");
  assert.equal(stateOf({ ...SCHEDULE, failing: 3 }, at), "failing");
  assert.deepEqual(troubledFirst([SCHEDULE, paused, late, held], at).map((one) => one.name), ["held", "late", "daily", "paused"]);
});

test("occurrences show what became of their jobs", () => {
  const fired: Occurrence = { schedule: "s", tenant: "default", instant: "2027-01-01T00:00:00Z", count: 1, outcome: "fired", reason: "", decided_at: "", job_id: "a" };
  const [one, other] = joined([fired, { ...fired, job_id: "unknown" }], [job("a", { status: "FAILED" })]);
  assert.equal(stateOfRecent(one!.outcome, one!.status), "FAILED");
  assert.equal(stateOfRecent(other!.outcome, other!.status), "fired");
  const mark: Recent = { at: "", outcome: "fired", reason: "", job_status: "FAILED", job_id: "a", count: 1 };
  assert.equal(summaryOf([mark, { ...mark, outcome: "skipped", job_status: null, count: 12 }]), "1 failed, 12 skipped");
  assert.equal(summaryOf([]), "none yet");
  assert.equal(lookOf("FAILED").word, "Failed");
  assert.equal(lookOf("constructor").word, "constructor");
});

test("arguments are checked before they are sent", () => {
  assert.equal(checkArgs('{"a": 1}', false), null);
  assert.match(checkArgs("[1]", true) ?? "", /object/);
  const masked = '{"a": [{"password": "***"}]}';
  assert.match(checkArgs(masked, false) ?? "", /masked/);
  assert.equal(checkArgs(masked, true), null);
  assert.notEqual(checkArgs("{", false), null);
});

test("own frames are told from others", () => {
  const parts = framesOf('Traceback (most recent call last):\n  File "/app/.venv/lib/python3.11/site-packages/x/y.py", line 1, in f\n    g()\n  File "/app/jobs.py", line 9, in g\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n');
  assert.deepEqual(parts.map((part) => ("text" in part ? "text" : part.isOwn)), ["text", false, true, "text"]);
  assert.deepEqual("lines" in parts[2]! ? parts[2].lines : [], ["    1/0", "    ~^~"]);
});

test("how many run of how many that may", () => {
  assert.equal(boundOf(null, undefined), "");
  assert.equal(boundOf(null, 8), " of 8 slots");
  assert.equal(boundOf(5, 8), " of 5 allowed");
  assert.equal(boundOf(5, 1), " of 5 allowed, 1 slot");
});

test("a job like another one has the same options, and the page shows those that it does not name", () => {
  const first = job("job_1", { queue: "media", tags: ["a", "b"], timeout: "30m", key: "k", tenant: "42" });
  const same = { type: "report", queue: "media", priority: first.priority, max_attempts: 3, timeout: "30m", tags: ["a", "b"] };
  assert.deepEqual(optionsOf(first, false), same);
  assert.deepEqual(optionsOf(first, true), { ...same, tenant: "42" });
  assert.deepEqual(jobFlags(optionsOf(first, true)), { queue: "media", priority: String(first.priority), tenant: "42", "max-attempts": "3", "job-timeout": "30m", tag: ["a", "b"] });
  assert.deepEqual(otherOptions(first), []);
  const more = { ...first, callback_url: "https://example.org/" } as Job; // As if the resource had this field of the request.
  assert.deepEqual(otherOptions(more), [["Callback url", "https://example.org/"]]);
  assert.equal(jobFlags(optionsOf(more, false))["callback-url"], "https://example.org/");
});
