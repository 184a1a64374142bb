import assert from "node:assert/strict";
import { test } from "node:test";
import { effect, signal } from "../src/signals.ts";

test("what has read a value is done again when it changes, and only then", () => {
  const one = signal(1);
  const other = signal("a");
  const seen: string[] = [];
  const stop = effect(() => seen.push(one.value > 1 ? `${one.value}${other.value}` : String(one.value)));
  other.value = "b"; // Not read yet.
  one.value = 1; // The same.
  one.value = 2;
  other.value = "c";
  one.value = 0;
  other.value = "d"; // Not read any more.
  stop();
  one.value = 9;
  assert.deepEqual(seen, ["1", "2b", "2c", "0"]);
});

test("what is done while something else is followed is followed for itself", () => {
  const outer = signal(0);
  const inner = signal(0);
  let runs = 0;
  effect(() => {
    runs++;
    effect(() => void inner.value);
    void outer.value;
  });
  inner.value = 1;
  assert.equal(runs, 1);
  outer.value = 1;
  assert.equal(runs, 2);
});
