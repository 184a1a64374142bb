/** Reading for pages: once, again when told to, and not any more when the page is left. */
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ask, wordsOf } from "./api.ts";
import { hear, liveState, onReadAgain, type News } from "./live.ts";

export interface Read<Shape> {
  data: Shape | null;
  problem: string | null;
  status: number;
  isReading: boolean;
  again: () => void;
  set: (data: Shape) => void;
}

/** Read an address, and again when it changes or everything is read again; null reads nothing. With `keeps`, what was read at the address before stays until the new answer is there. */
export function useRead<Shape>(address: string | null, options: { every?: number; keeps?: boolean } = {}): Read<Shape> {
  const [state, setState] = useState<{ address: string | null; data: Shape | null; problem: string | null; status: number; isReading: boolean }>({
    address,
    data: null,
    problem: null,
    status: 0,
    isReading: address !== null,
  });
  const current = useRef<AbortController | null>(null);

  const again = useCallback(() => {
    current.current?.abort();
    if (address === null) return;
    const mine = new AbortController();
    current.current = mine;
    setState((before) => ({ ...before, ...(before.address === address || options.keeps ? {} : { data: null, problem: null }), address, isReading: true }));
    ask<Shape>(address, { signal: mine.signal }).then(
      (data) => mine.signal.aborted || setState({ address, data, problem: null, status: 200, isReading: false }),
      (error: unknown) => {
        if (mine.signal.aborted) return;
        const status = error !== null && typeof error === "object" && "status" in error ? Number(error.status) : 0;
        setState((before) => ({ ...before, address, problem: wordsOf(error), status, isReading: false }));
      },
    );
  }, [address]);

  // Before the first paint, not after it: the answer is on its way while that is drawn.
  useLayoutEffect(() => {
    again();
    const leave = onReadAgain(again);
    return () => {
      leave();
      current.current?.abort();
    };
  }, [again]);
  useEvery(options.every, again);

  const set = useCallback((data: Shape) => setState((before) => ({ ...before, data })), []);
  const isMine = state.address === address || options.keeps === true;
  return { data: isMine ? state.data : null, problem: isMine ? state.problem : null, status: state.status, isReading: state.isReading || !isMine, again, set };
}

/** Do something every so often while somebody looks. */
export function useEvery(every: number | undefined, what: () => void): void {
  const latest = useRef(what);
  latest.current = what;
  useEffect(() => {
    if (!every) return undefined;
    const timer = setInterval(() => {
      if (!document.hidden && liveState.value !== "paused") latest.current();
    }, every);
    return () => clearInterval(timer);
  }, [every]);
}

/** Hear news while the page is shown. */
export function useNews(listener: (news: readonly News[]) => void): void {
  const latest = useRef(listener);
  latest.current = listener;
  useLayoutEffect(() => hear((news) => latest.current(news)), []);
}

/** Return a function that does something at most once in so long, with the last call counting. */
export function useCalm(what: () => void, ms: number): () => void {
  const latest = useRef(what);
  latest.current = what;
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  return useCallback(() => {
    if (timer.current) return;
    timer.current = window.setTimeout(() => {
      timer.current = 0;
      latest.current();
    }, ms);
  }, [ms]);
}

/** Return a value that follows another one once that has been still for a while. */
export function useSettled<Value>(value: Value, ms: number): Value {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** Name the page in the title of the window. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title === "" ? "Headway" : `${title} · Headway`;
  }, [title]);
}
