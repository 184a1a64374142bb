/** The command that does the same as a button, ready to be pasted. */
import { serverUrl } from "./api.ts";
import { shellWord } from "./format.ts";

/** Options by name: true is a flag, a list is repeated, and undefined or empty values are left out. */
export type Options = Readonly<Record<string, string | true | readonly string[] | undefined>>;

/** Build a command for this server. */
export function command(words: readonly string[], options: Options = {}): string {
  return commandAt(serverUrl(), words, options);
}

/** Build a command for a server. A name that looks like an option comes last, after `--`. */
export function commandAt(server: string, words: readonly string[], options: Options = {}): string {
  const dash = words.findIndex((word) => word.startsWith("-"));
  const plain = dash < 0 ? words : words.slice(0, dash);
  const parts = ["headway", ...plain.map(shellWord)];
  for (const [name, value] of Object.entries(options)) {
    if (value === true) parts.push(`--${name}`);
    else for (const one of typeof value === "string" ? [value] : (value ?? [])) if (one !== "") parts.push(`--${name}`, shellWord(one));
  }
  parts.push("--server", shellWord(server));
  return [...parts, ...(dash < 0 ? [] : ["--", ...words.slice(dash).map(shellWord)])].join(" ");
}
