/** Addresses: `#/jobs?status=FAILED`. Everything that a page shows is in the hash, so that every address can be shared. */
import { signal } from "./signals.ts";

export interface Route {
  /** The parts of the path, decoded: `["jobs", "job_01…"]`. */
  path: readonly string[];
  query: Readonly<Record<string, string>>;
}

/** Read an address. */
export function readHash(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decoded);
  const found: Record<string, string> = Object.create(null) as Record<string, string>;
  for (const [name, value] of new URLSearchParams(query)) if (value !== "") found[name] = value;
  return { path: parts, query: found };
}

/** Write an address; what is empty is left out. */
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

/** Go somewhere; `replace` leaves no step in the history, for what changes with every key. */
export function go(address: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", address);
    route.value = readHash(address);
  } else {
    location.hash = address;
  }
}

/** Follow the address from now on. */
export function startRouter(): void {
  const read = (): void => {
    route.value = readHash(location.hash);
  };
  addEventListener("hashchange", read);
  read();
}
