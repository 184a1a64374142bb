/** Addresses: `#/jobs?status=FAILED`. Everything that a page shows is in the hash, so that every address can be shared. */
import { signal } from "./signals.ts";

export interface Route {
  /** The parts of the path, decoded: `["jobs", "job_01…"]`. */
  path: readonly string[];
  query: Readonly<Record<string, string>>;
}

/** Parse an address. */
export function readHash(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decoded);
  const found: Record<string, string> = Object.create(null) as Record<string, string>;
  for (const [name, value] of new URLSearchParams(query)) if (value !== "") found[name] = value;
  return { path: parts, query: found };
}

/** Build an address; empty values are left out. */
export function href(path: readonly string[], query: Readonly<Record<string, string | undefined>> = {}): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) found.set(name, value);
  const words = found.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${words ? `?${words}` : ""}`;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal<Route>({ path: [], query: {} });

/** Navigate; `replace` adds no history entry, for addresses that change with every key. */
export function go(address: string, replace = false): void {
  if (replace) {
    history.replaceState(history.state, "", address);
    route.value = readHash(address);
  } else {
    location.hash = address;
  }
}

let seen = 0;

/** Go back to the previous page; without one of ours, go to the parent, so that users do not leave by accident. */
export function goBack(above: string): void {
  if (seen > 0) history.back();
  else go(above);
}

/** Follow the address from now on. */
export function startRouter(): void {
  const read = (): void => {
    route.value = readHash(location.hash);
  };
  // Each history entry stores how many of our pages precede it, also after a reload.
  const count = (): void => {
    const known: unknown = (history.state as { seen?: unknown } | null)?.seen;
    if (typeof known === "number") seen = known;
    else history.replaceState({ seen: ++seen }, "");
  };
  if (typeof (history.state as { seen?: unknown } | null)?.seen !== "number") history.replaceState({ seen: 0 }, "");
  count();
  addEventListener("hashchange", () => {
    count();
    read();
  });
  read();
}
