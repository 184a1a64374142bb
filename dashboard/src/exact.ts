/** Lossless JSON: integers keep all their digits, also those that a JavaScript number cannot hold. */

/** A number as it was written, for those that a JavaScript number would change. */
export class ExactNumber {
  constructor(readonly text: string) {}

  toString(): string {
    return this.text;
  }
}

export type Json = null | boolean | number | string | ExactNumber | Json[] | { [name: string]: Json };

// A run of this many digits may not fit; texts without one are parsed by the fast parser of the browser. Matched only where
// a number can begin: ids are full of digits.
const MAYBE_LONG = /(?:^|[:,[\s])-?(?:[0-9]{16}|[0-9]+\.[0-9]{15}|[0-9.]+[eE])/;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\.)*"/y;
const SPACE = /[ \t\n\r]*/y;
const DEPTH_MAX = 200;

/** Parse JSON; a number that would lose digits becomes an ExactNumber. */
export function parseExact(text: string): Json {
  if (!MAYBE_LONG.test(text)) return JSON.parse(text) as Json;
  const reader = new Reader(text);
  return reader.whole();
}

/** Serialize JSON with all digits. */
export function writeExact(value: Json, indent = 0, margin = ""): string {
  if (value instanceof ExactNumber) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const inner = indent ? `\n${margin}${" ".repeat(indent)}` : "";
  const outer = indent ? `\n${margin}` : "";
  const deeper = margin + " ".repeat(indent);
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[${inner}${value.map((item) => writeExact(item, indent, deeper)).join(`,${inner}`)}${outer}]`;
  }
  const names = Object.keys(value);
  if (!names.length) return "{}";
  const colon = indent ? ": " : ":";
  const parts = names.map((name) => JSON.stringify(name) + colon + writeExact(value[name] ?? null, indent, deeper));
  return `{${inner}${parts.join(`,${inner}`)}${outer}}`;
}

/** Return whether a JavaScript number holds the written value. */
export function fits(text: string): boolean {
  const value = Number(text);
  if (!Number.isFinite(value)) return false;
  if (/^-?[0-9]+$/.test(text)) return Number.isSafeInteger(value);
  const digits = text.replace(/[eE].*$/, "").replace(/[-.]/g, "").replace(/^0+/, "").replace(/0+$/, "");
  return digits.length <= 15;
}

class Reader {
  private at = 0;

  constructor(private readonly text: string) {}

  whole(): Json {
    const value = this.value(0);
    this.space();
    if (this.at !== this.text.length) this.fail();
    return value;
  }

  private value(depth: number): Json {
    if (depth > DEPTH_MAX) throw new SyntaxError("nested too deep");
    this.space();
    const first = this.text[this.at];
    if (first === "{") return this.object(depth);
    if (first === "[") return this.list(depth);
    if (first === '"') return JSON.parse(this.take(STRING)) as string;
    for (const [word, value] of [["true", true], ["false", false], ["null", null]] as const) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return value;
      }
    }
    const number = this.take(NUMBER);
    return fits(number) ? Number(number) : new ExactNumber(number);
  }

  private object(depth: number): Json {
    const found: { [name: string]: Json } = {};
    this.at++;
    if (this.skip("}")) return found;
    do {
      this.space();
      const name = JSON.parse(this.take(STRING)) as string;
      if (!this.skip(":")) this.fail();
      // Not by assignment: a field named __proto__ is an ordinary field.
      Object.defineProperty(found, name, { value: this.value(depth + 1), enumerable: true, writable: true, configurable: true });
    } while (this.skip(","));
    if (!this.skip("}")) this.fail();
    return found;
  }

  private list(depth: number): Json {
    const found: Json[] = [];
    this.at++;
    if (this.skip("]")) return found;
    do found.push(this.value(depth + 1));
    while (this.skip(","));
    if (!this.skip("]")) this.fail();
    return found;
  }

  private space(): void {
    SPACE.lastIndex = this.at;
    SPACE.exec(this.text);
    this.at = SPACE.lastIndex;
  }

  private skip(mark: string): boolean {
    this.space();
    if (this.text[this.at] !== mark) return false;
    this.at++;
    return true;
  }

  private take(pattern: RegExp): string {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found === null) return this.fail();
    this.at = pattern.lastIndex;
    return found[0];
  }

  private fail(): never {
    throw new SyntaxError(`not JSON at character ${this.at + 1}`);
  }
}
