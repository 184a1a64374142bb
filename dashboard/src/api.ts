/** The client of the public API. Every address is relative to the page, so that it works behind any sub-path. */
import { signal } from "./signals.ts";
import { parseExact, writeExact, type Json } from "./exact.ts";

/** The error of a request that was refused or got no response. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string | null = null,
    readonly requestId: string | null = null,
  ) {
    super(message);
  }
}

export type Query = Readonly<Record<string, string | number | boolean | undefined | null>>;

/** Whether the server requires a token that we do not have. */
export const needsSignIn = signal(false);

const PATIENCE_MS = 30_000;

/** Build a URL of the API. */
export function apiUrl(parts: readonly string[], query: Query = {}): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") found.set(name, String(value));
  }
  const words = found.toString();
  return `api/${parts.map(encodeURIComponent).join("/")}${words ? `?${words}` : ""}`;
}

/** Return the address of this server for the command line. */
export function serverUrl(): string {
  return new URL(".", document.baseURI).href.replace(/[#?].*$/, "").replace(/\/$/, "");
}

export interface Sent {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  body?: Json;
  /** A body that is sent verbatim, so that numbers keep all their digits. */
  text?: string;
  headers?: Readonly<Record<string, string>>;
  signal?: AbortSignal;
}

/** Send a request to the API, and parse the response without loss of digits. */
export async function ask<Shape>(address: string, sent: Sent = {}): Promise<Shape> {
  const answer = await send(address, sent);
  const text = await answer.text();
  if (answer.ok) return (text === "" ? null : parseExact(text)) as Shape;
  if (answer.status === 401) needsSignIn.value = true;
  throw problemOf(answer.status, text, answer.headers.get("Retry-After"));
}

async function send(address: string, sent: Sent): Promise<Response> {
  const text = sent.text ?? (sent.body === undefined ? undefined : writeExact(sent.body));
  const patience = AbortSignal.timeout(PATIENCE_MS);
  try {
    return await fetch(address, {
      method: sent.method ?? "GET",
      credentials: "same-origin",
      headers: { Accept: "application/json", ...(text !== undefined ? { "Content-Type": "application/json" } : {}), ...sent.headers },
      signal: sent.signal ? anyOf(sent.signal, patience) : patience,
      ...(text !== undefined ? { body: text } : {}),
    });
  } catch (error) {
    if (sent.signal?.aborted) throw error;
    const isLate = error instanceof DOMException && error.name === "TimeoutError";
    throw new ApiError(0, "unreachable", isLate ? "The server took too long to respond." : "The server cannot be reached.");
  }
}

function anyOf(first: AbortSignal, second: AbortSignal): AbortSignal {
  const both = new AbortController();
  for (const one of [first, second]) {
    if (one.aborted) both.abort(one.reason);
    one.addEventListener("abort", () => both.abort(one.reason), { once: true });
  }
  return both.signal;
}

/** Return the message of a refusal; a proxy in between may send something other than JSON. */
export function problemOf(status: number, text: string, retryAfter: string | null = null): ApiError {
  try {
    const found = JSON.parse(text) as { error?: { code?: string; message?: string; hint?: string }; request_id?: string };
    if (typeof found.error?.message === "string") {
      const message = sentence(found.error.message);
      return new ApiError(status, found.error.code ?? "error", message, found.error.hint ?? null, found.request_id ?? null);
    }
  } catch {
    // Not ours.
  }
  const wait = retryAfter && /^\d+$/.test(retryAfter) ? ` Try again in ${retryAfter} s.` : "";
  return new ApiError(status, "error", `The server responded with ${status}.${wait}`);
}

function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}

/** Return the message of any error. */
export function wordsOf(error: unknown): string {
  if (error instanceof ApiError) return error.hint ? `${error.message} ${sentence(error.hint)}` : error.message;
  if (error instanceof Error) return sentence(error.message);
  return "Something went wrong.";
}
