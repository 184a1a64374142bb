import assert from "node:assert/strict";
import { test } from "node:test";
import { cronInWords, inWords, readDuration, ruleText, spanText } from "../src/cron.ts";

test("common cron texts in words", () => {
  const expected: [string, string | null][] = [
    ["* * * * *", "every minute"],
    ["*/15 * * * *", "every 15 minutes"],
    ["0 * * * *", "every hour"],
    ["30 2 * * *", "every day at 02:30"],
    ["0 6,18 * * *", "every day at 06:00 and 18:00"],
    ["0 9 * * 1-5", "on weekdays at 09:00"],
    ["0 9 * * MON,THU", "on Monday and Thursday at 09:00"],
    ["0 0 1 1 *", "on day 1 of January at 00:00"],
    ["0 0 1,15 * *", "on day 1 and 15 of the month at 00:00"],
    ["0 0 L * *", "on the last day of the month at 00:00"],
    ["0 */6 * * *", "every 6 hours"],
    ["*/5 9-17 * * 1-5", "every 5 minutes from 09:00 to 17:59, on weekdays"],
    ["@daily", "every day at 00:00"],
    ["0 12 * * 7", "on Sunday at 12:00"],
  ];
  for (const [expr, words] of expected) assert.equal(cronInWords(expr), words, expr);
});

test("what is better said by the rule itself is not said in words", () => {
  for (const expr of ["0 0 13 * 5", "61 * * * *", "1-5,7 3 * * *", "a b c d e", "* * *", "", "0 0 32 * *"]) assert.equal(cronInWords(expr), null, expr);
});

test("other rules", () => {
  assert.equal(inWords({ kind: "every", interval: "15s" }), "every 15 seconds");
  assert.equal(inWords({ kind: "every", interval: "1h" }), "every hour");
  assert.equal(inWords({ kind: "after", delay: "20s" }), "20 seconds after the last job has ended");
  assert.equal(inWords({ kind: "cron", expr: "* * * * *", seconds: "*/10" }), null);
  assert.equal(ruleText({ kind: "cron", expr: "0 6 * * *", tz: "UTC" }), "0 6 * * *");
  assert.equal(ruleText({ kind: "at", instant: "2027-01-01T00:00:00Z" }), "at 2027-01-01T00:00:00Z");
});

test("durations of the API", () => {
  assert.equal(readDuration("1h30m"), 5_400_000);
  assert.equal(readDuration("250ms"), 250);
  assert.ok(Number.isNaN(readDuration("soon")));
  assert.ok(Number.isNaN(readDuration("")));
  assert.equal(spanText("90s"), "1m 30s");
  assert.equal(spanText("whatever"), "whatever");
});
