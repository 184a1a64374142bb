import assert from "node:assert/strict";
import { test } from "node:test";
import { isNewer, matches, merged, mergedList } from "../src/merge.ts";
import { stateAfter, waitBefore } from "../src/live.ts";
import type { JobNews } from "../src/models.ts";
import type { Job } from "../src/types.ts";
import { job } from "./samples.ts";

const news = (id: string, changes: Partial<JobNews>): JobNews => {
  const { created_at: _, ...rest } = job(id, changes as Partial<Job>);
  return rest;
};

test("a job never goes back", () => {
  assert.ok(isNewer({ version: 3 }, { version: 2 }));
  assert.ok(!isNewer({ version: 2 }, { version: 2 }));
  assert.ok(!isNewer({ version: 1, live: 9 }, { version: 2 }));
  assert.ok(isNewer({ version: 2, live: 2 }, { version: 2, live: 1 }));
  assert.equal(merged(job("a", { version: 5 }), news("a", { version: 4, progress: 90 })), null);
  assert.equal(merged(job("a"), news("b", { version: 9 })), null);
});

test("news are put into what is known, and keep what they do not tell", () => {
  const after = merged(job("a", { live: 7, args: { n: 1 } }), news("a", { version: 2, status: "COMPLETED", progress: 100 }));
  assert.equal(after?.status, "COMPLETED");
  assert.equal(after?.live, undefined);
  assert.equal(after?.created_at, "2027-01-01T00:00:00Z");
});

test("metadata that was too large to be told is kept", () => {
  const known = job("a", { version: 1, metadata: { input: "v.mp4", current_step: "Load" } });
  const told = news("a", { version: 2, metadata: { current_step: "Store" }, omitted: ["metadata"] });
  const after = merged(known, told);
  assert.deepEqual(after?.metadata, { input: "v.mp4", current_step: "Store" });
  assert.equal(after?.omitted, undefined);
  assert.deepEqual(merged(known, { ...told, omitted: undefined } as unknown as JobNews)?.metadata, { current_step: "Store" });
});

test("rows keep their order, and a list without news stays the same list", () => {
  const list = [job("c"), job("a"), job("b")];
  const after = mergedList(list, [news("b", { version: 2, progress: 10 }), news("a", { version: 3, progress: 30 }), news("a", { version: 2, progress: 20 }), news("z", { version: 9 })]);
  assert.deepEqual(after.map((one) => [one.id, one.progress]), [["c", 0], ["a", 30], ["b", 10]]);
  assert.equal(mergedList(list, [news("a", { version: 1 })]), list);
});

test("filters are checked against news", () => {
  const one = job("a", { tags: ["x"], schedule: "daily", key: "k" });
  assert.ok(matches(one, {}));
  assert.ok(matches(one, { status: "RUNNING", type: "report", tag: "x", schedule: "daily", key: "k" }));
  assert.ok(!matches(one, { tag: "y" }));
  assert.ok(!matches(one, { status: "FAILED" }));
  assert.ok(!matches(one, { tenant: "other" }));
  assert.ok(matches(one, { q: "DAI", since: "1h" }));
  assert.ok(!matches(one, { q: "weekly" }));
  assert.ok(!matches(one, { ended: "1h" }));
  assert.ok(!matches(one, { rerun_of: "b" }));
});

test("a broken connection is tried again ever more seldom, and then polled beside", () => {
  assert.deepEqual([1, 2, 3, 4, 5, 20].map(waitBefore), [1000, 2000, 4000, 8000, 15000, 15000]);
  assert.equal(stateAfter(1), "reconnecting");
  assert.equal(stateAfter(3), "polling");
});
