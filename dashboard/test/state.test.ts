import assert from "node:assert/strict";
import { test } from "node:test";
import { apiUrl, problemOf, wordsOf } from "../src/api.ts";
import { rowsOf } from "../src/attempts.tsx";
import { bodyOf, changesOf, draftOf, EMPTY } from "../src/definition.ts";
import { filtersOf, readWords, sinceTime } from "../src/filters.ts";
import { stateOf, troubledFirst } from "../src/pages/schedules.tsx";
import { joined, stateOfRecent } from "../src/recent.tsx";
import { href, readHash } from "../src/router.ts";
import { checkArgs } from "../src/runagain.tsx";
import { lookOf } from "../src/statuses.ts";
import { endedOf, overdue, perDay, perMinute, quantile, toneOfDay, windowFor } from "../src/summary.ts";
import { framesOf } from "../src/trace.ts";
import type { Attempt, Occurrence, Schedule } from "../src/types.ts";
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
  assert.equal(problemOf(503, "<html>busy</html>", "3").message, "The server answered with 503. Try again in 3 s.");
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

test("figures per minute", () => {
  const at = Date.parse("2027-01-01T00:10:00Z");
  const ended = [
    { id: "1", at: at + 1_000, took: 1_000, isGood: true },
    { id: "2", at: at + 2_000, took: 3_000, isGood: true },
    { id: "3", at: at + 61_000, took: 9_000, isGood: false },
    { id: "4", at: at - 600_000, took: 1, isGood: true },
  ];
  const minutes = perMinute(ended, at, at + 90_000);
  assert.deepEqual(minutes.good, [2, 0]);
  assert.deepEqual(minutes.bad, [0, 1]);
  assert.deepEqual(minutes.usual, [2, null]);
  assert.ok(Number.isNaN(quantile([], 0.5)));
  assert.equal(quantile([1, 2, 3, 4], 0.5), 2.5);
  assert.equal(endedOf(job("a")), null);
  assert.equal(endedOf(job("a", { status: "FAILED", finished_at: "2027-01-01T00:00:02Z" }))?.took, 2_000);
});

test("days by the clock of the schedule", () => {
  const one = (instant: string, changes: Partial<Occurrence> = {}): Occurrence => ({ schedule: "s", instant, count: 1, outcome: "fired", reason: "", decided_at: instant, job_id: null, ...changes });
  const days = perDay([one("2027-01-01T23:30:00Z", { job_id: "bad" }), one("2027-01-01T10:00:00Z"), one("2027-01-05T00:00:00Z", { until: "2027-01-07T00:00:00Z", count: 30, outcome: "skipped" })], new Set(["bad"]), "Europe/Berlin");
  assert.equal(days.get("2027-01-02")?.failed, 1);
  assert.equal(days.get("2027-01-01")?.fired, 1);
  assert.equal(days.get("2027-01-06")?.skipped, 10);
  assert.equal(toneOfDay(days.get("2027-01-02")), "bad");
  assert.equal(toneOfDay(days.get("2027-01-06")), "warn");
  assert.equal(toneOfDay(undefined), "none");
});

test("what takes too long is found by what is usual", () => {
  const now = Date.parse("2027-01-01T00:05:00Z");
  const usual = (value: number) => () => value;
  assert.equal(overdue([job("a")], usual(200_000), now).length, 0);
  assert.equal(overdue([job("a")], usual(60_000), now)[0]?.ran, 300_000);
  assert.equal(overdue([job("a")], usual(Number.NaN), now).length, 0);
  assert.equal(overdue([job("a")], usual(Number.NaN), now + 600_000).length, 1);
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

const SCHEDULE: Schedule = { name: "daily", task: "report", trigger: { kind: "cron", expr: "0 6 * * *", tz: "Europe/Berlin", dst: "shift" }, rule: "", args: { n: 1 }, tenant: "default", queue: "default", priority: 0, max_attempts: 1, backoff: null, tags: ["a"], overlap: "skip", queue_limit: 1, missed: "latest", deadline: null, grace: "1m", catch_up_limit: 100, catch_up_rate: null, jitter: "0s", start: null, end: null, expect: null, owner: "", revision: 1, created_at: "", decided_through: "", next_at: "2027-01-01T00:00:00Z", paused: false, pause: null, attention: null, failing: 0 };

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
  const fired: Occurrence = { schedule: "s", instant: "2027-01-01T00:00:00Z", count: 1, outcome: "fired", reason: "", decided_at: "", job_id: "a" };
  const [one, other] = joined([fired, { ...fired, job_id: "unknown" }], [job("a", { status: "FAILED" })]);
  assert.equal(stateOfRecent(one!), "FAILED");
  assert.equal(stateOfRecent(other!), "fired");
  assert.equal(lookOf("FAILED").word, "Failed");
  assert.equal(lookOf("constructor").word, "constructor");
});

test("arguments are checked before they are sent", () => {
  assert.equal(checkArgs('{"a": 1}'), null);
  assert.match(checkArgs("[1]") ?? "", /object/);
  assert.match(checkArgs('{"a": [{"password": "***"}]}') ?? "", /masked/);
  assert.notEqual(checkArgs("{"), null);
});

test("own frames are told from others", () => {
  const parts = framesOf('Traceback (most recent call last):\n  File "/app/.venv/lib/python3.11/site-packages/x/y.py", line 1, in f\n    g()\n  File "/app/jobs.py", line 9, in g\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n');
  assert.deepEqual(parts.map((part) => ("text" in part ? "text" : part.isOwn)), ["text", false, true, "text"]);
  assert.deepEqual("lines" in parts[2]! ? parts[2].lines : [], ["    1/0", "    ~^~"]);
});
