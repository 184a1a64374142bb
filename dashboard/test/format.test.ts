import assert from "node:assert/strict";
import { test } from "node:test";
import { clip, count, counted, countdown, dateIn, duration, inZone, percent, rate, relative, safeUrl, shellWord, shortId, span, timeLeft, tries, visible } from "../src/format.ts";
import { commandAt } from "../src/cli.ts";

const AT = Date.parse("2027-03-28T01:00:00Z");

test("durations of the API are read as they are written", () => {
  const expected: [string, number][] = [
    ["0s", 0],
    ["5s", 5_000],
    ["1h30m", 5_400_000],
    ["1d2h3m4s5ms", 93_784_005],
    ["250ms", 250],
    ["1us", 0.001],
  ];
  for (const [text, ms] of expected) assert.equal(span(text), ms, text);
});

test("durations have their two largest parts", () => {
  const expected: [number, string][] = [
    [0, "0s"],
    [12, "12ms"],
    [512, "0.5s"],
    [1000, "1s"],
    [9_949, "9.9s"],
    [59_600, "1m"],
    [252_000, "4m 12s"],
    [3_600_000, "1h"],
    [3_605_000, "1h"],
    [93_600_000, "1d 2h"],
    [400 * 86_400_000, "1y 35d"],
    [-5_000, "-5s"],
    [Number.NaN, "–"],
  ];
  for (const [ms, words] of expected) assert.equal(duration(ms), words);
});

test("a job that is later than it has said has no time left", () => {
  const at = new Date(AT).toISOString();
  assert.equal(timeLeft(at, AT - 251_500), "about 4m 12s left");
  assert.equal(timeLeft(at, AT - 1), "about 1s left");
  for (const late of [0, 1, 1_000, 86_400_000]) assert.equal(timeLeft(at, AT + late), "");
  assert.equal(timeLeft(null, AT), "");
  assert.equal(timeLeft(undefined, AT), "");
});

test("times are relative to now, in one part", () => {
  assert.equal(relative(AT, AT), "now");
  assert.equal(relative(AT - 12_400, AT), "12s ago");
  assert.equal(relative(AT + 61_000, AT), "in 1m");
  assert.equal(relative(AT - 3 * 86_400_000, AT), "3d ago");
  assert.equal(countdown(AT + 65_000, AT), "in 1m 05s");
  assert.equal(countdown(AT + 5_000, AT), "in 5s");
  assert.equal(countdown(AT - 5_000, AT), "now");
  assert.equal(countdown(AT + 26 * 3_600_000, AT), "in 1d 2h");
});

test("exact times by the clock of a zone, with its offset on that day", () => {
  assert.equal(inZone(AT, "UTC"), "2027-03-28 01:00:00 Z");
  assert.equal(inZone(AT, "Europe/Berlin"), "2027-03-28 03:00:00 +02:00");
  assert.equal(inZone(AT - 1_000, "Europe/Berlin"), "2027-03-28 01:59:59 +01:00");
  assert.equal(inZone(AT, "Asia/Kathmandu"), "2027-03-28 06:45:00 +05:45");
  assert.equal(inZone(AT, "America/New_York"), "2027-03-27 21:00:00 -04:00");
  assert.equal(inZone(AT, "Nowhere/Land"), "");
  assert.equal(dateIn(AT, "America/New_York"), "2027-03-27");
});

test("numbers", () => {
  assert.equal(count(1234567), "1,234,567");
  assert.equal(counted(1, "job"), "1 job");
  assert.equal(counted(0, "job"), "0 jobs");
  assert.equal(counted(2, "process", "processes"), "2 processes");
  assert.equal(percent(0), "0%");
  assert.equal(percent(0.0006), "0.06%");
  assert.equal(percent(0.123), "12%");
  assert.equal(percent(0.00001), "< 0.01%");
  assert.equal(rate(42.4), "42/s");
  assert.equal(rate(0.05), "3/min");
  assert.equal(rate(0), "0/s");
});

test("what cannot be seen is written out", () => {
  assert.equal(visible("a\u001b[31mb\u202ec\u0000"), "a\\u001b[31mb\\u202ec\\u0000");
  assert.equal(visible("tabs\tand\nlines stay"), "tabs\tand\nlines stay");
  assert.equal(visible("<img src=x onerror=alert(1)>"), "<img src=x onerror=alert(1)>");
});

test("only http and https are links", () => {
  assert.equal(safeUrl("https://example.com/a b"), "https://example.com/a%20b");
  for (const text of ["javascript:alert(1)", "data:text/html,x", " https://x", "//example.com", "ftp://x", "https://", "JAVASCRIPT://x%0aalert(1)", `https://${"x".repeat(3000)}`]) {
    assert.equal(safeUrl(text), null, text);
  }
});

test("words for the shell cannot break out", () => {
  assert.equal(shellWord("daily-report"), "daily-report");
  assert.equal(shellWord("a b; rm -rf $HOME"), "'a b; rm -rf $HOME'");
  assert.equal(shellWord("it's"), "'it'\\''s'");
  assert.equal(shellWord(""), "''");
  assert.equal(commandAt("http://h:1", ["jobs", "cancel", "job_1"], { reason: "why not", all: true, none: undefined }), "headway jobs cancel job_1 --reason 'why not' --all --server http://h:1");
  assert.equal(commandAt("http://h:1", ["jobs", "cancel", "job_1"], { reason: "yes", tag: ["a", "b c"], empty: "" }), "headway jobs cancel job_1 --reason yes --tag a --tag 'b c' --server http://h:1");
  assert.equal(commandAt("http://h:1", ["queues", "pause", "-q"], { reason: "x" }), "headway queues pause --reason x --server http://h:1 -- -q");
});

test("attempts are told as on the command line", () => {
  assert.equal(tries({ attempts: 2, failures: 1, max_attempts: 3 }), "2/3");
  assert.equal(tries({ attempts: 3, failures: 3, max_attempts: 3 }), "3/3");
  assert.equal(tries({ attempts: 5, failures: 1, max_attempts: 3 }), "5 (1 of 3 failed)");
  assert.equal(tries({ attempts: 2, failures: 0, max_attempts: 3 }), "2 (0 of 3 failed)");
});

test("short forms", () => {
  assert.equal(shortId("job_01m7hmbee30g0g2met06cy943s"), "…cy943s");
  assert.equal(shortId("x"), "x");
  assert.equal(clip("abcdef", 4), "abc…");
});
