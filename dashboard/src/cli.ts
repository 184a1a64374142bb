/** The command that does the same as a button, ready to be pasted. */
import { serverUrl } from "./api.ts";
import { shellWord } from "./format.ts";

/** Write a command of this server. Options that are undefined are left out. */
export function command(words: readonly string[], options: Readonly<Record<string, string | undefined>> = {}): string {
  return commandAt(serverUrl(), words, options);
}

/** Write a command of a server. */
export function commandAt(server: string, words: readonly string[], options: Readonly<Record<string, string | undefined>> = {}): string {
  const parts = ["headway", ...words.map(shellWord)];
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === "") continue;
    parts.push(`--${name}`, ...(value === "yes" ? [] : [shellWord(value)]));
  }
  return [...parts, "--server", shellWord(server)].join(" ");
}
