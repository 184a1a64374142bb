import assert from "node:assert/strict";
import { test } from "node:test";
import { ExactNumber, fits, parseExact, writeExact, type Json } from "../src/exact.ts";

test("whole numbers keep all their digits", () => {
  const text = '{"id":12345678901234567890,"deep":[{"n":-9007199254740993}],"ok":9007199254740991}';
  const value = parseExact(text) as { id: Json; ok: Json };
  assert.ok(value.id instanceof ExactNumber);
  assert.equal(String(value.id), "12345678901234567890");
  assert.equal(value.ok, 9007199254740991);
  assert.equal(writeExact(value as unknown as Json), text);
});

test("fractions and exponents that do not fit keep their text", () => {
  assert.equal(fits("0.1"), true);
  assert.equal(fits("1.0"), true);
  assert.equal(fits("0.12345678901234567"), false);
  assert.equal(fits("1e400"), false);
  assert.equal(fits("1.5e3"), true);
  assert.equal(writeExact(parseExact('[0.12345678901234567,1e400,2]')), "[0.12345678901234567,1e400,2]");
});

test("reads the same as the parser of the browser where nothing is lost", () => {
  for (const text of ['{"a":[1,2.5,-3e2,true,false,null,"x\\n\\u00e9"],"b":{}}', " [ ] ", '"1234567890123456789"', "0", "[9999999999999999999,{}]"]) {
    const plain = JSON.parse(text) as unknown;
    const exact = JSON.parse(writeExact(parseExact(text))) as unknown;
    assert.deepEqual(exact, plain);
  }
});

test("a long number is noticed wherever one can begin", () => {
  for (const number of ["12345678901234567890", "-12345678901234567890", "0.12345678901234567", "-12.123456789012345678", "1e400", "-1.5E400"]) {
    for (const text of [number, ` ${number}`, `[${number}]`, `[1,${number}]`, `{"a":${number}}`, `{"a": ${number}}`, `[\n${number}\t]`]) {
      assert.ok(writeExact(parseExact(text)).includes(number), text);
    }
  }
});

test("refuses what is not JSON, also beside long numbers", () => {
  for (const text of ["", "{", "[1,]", "{'a':1}", "12345678901234567890 x", "[12345678901234567890,]", "012345678901234567890", "nul"]) {
    assert.throws(() => parseExact(text), SyntaxError, text);
  }
});

test("a field called __proto__ is a field", () => {
  const value = parseExact('{"__proto__":{"x":12345678901234567890}}') as { [name: string]: Json };
  assert.deepEqual(Object.keys(value), ["__proto__"]);
  assert.equal(Object.getPrototypeOf(value), Object.prototype);
  assert.equal(writeExact(value), '{"__proto__":{"x":12345678901234567890}}');
});

test("writes with indentation", () => {
  assert.equal(writeExact({ a: [1, { b: "c" }], d: {}, e: [] }, 2), JSON.stringify({ a: [1, { b: "c" }], d: {}, e: [] }, null, 2));
});
