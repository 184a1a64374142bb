/** Data loading for pages: once, again on request, and cancelled when the page is left. */
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ask, wordsOf } from "./api.ts";
import { bindKeys } from "./keys.ts";
import { hear, liveState, onReadAgain, type News } from "./live.ts";
import { goBack } from "./router.ts";

export interface Read<Shape> {
  data: Shape | null;
  problem: string | null;
  status: number;
  isReading: boolean;
  again: () => void;
  set: (data: Shape) => void;
}

/** Load a URL, and again when it changes or everything is reloaded; null loads nothing. With `keeps`, the data of the previous URL stays until the new response arrives. */
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

  // Before the first paint: the request is in progress while the page is drawn.
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

/** Call a function at intervals while the page is visible. */
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

/** Receive job events while the page is shown. */
export function useNews(listener: (news: readonly News[]) => void): void {
  const latest = useRef(listener);
  latest.current = listener;
  useLayoutEffect(() => hear((news) => latest.current(news)), []);
}

/** Load a URL, and keep it fresh: at intervals, and soon after jobs have changed. */
export function useFresh<Shape>(address: string): Read<Shape> {
  const read = useRead<Shape>(address, { every: 5_000 });
  const soon = useCalm(read.again, 1_000);
  useNews((news) => news.some((one) => one.kind !== "progress") && soon());
  return read;
}

/** Move between the rows of a list with j and k: the focus goes to their links, which Enter opens. */
export function useRowKeys(): void {
  useLayoutEffect(() => {
    const move = (step: number): void => {
      const links = [...document.querySelectorAll<HTMLElement>("main tbody .cell-main a")];
      const place = links.findIndex((link) => link.closest("tr")?.contains(document.activeElement));
      links[Math.max(0, Math.min(links.length - 1, place + step))]?.focus();
    };
    return bindKeys({ j: () => move(1), k: () => move(-1) });
  }, []);
}

/** Let Escape go back, or to the page above. */
export function useBackKey(above: string): void {
  useLayoutEffect(() => bindKeys({ Escape: () => goBack(above) }), [above]);
}

/** Throttle a function; the last call counts. */
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

/** Debounce a value. */
export function useSettled<Value>(value: Value, ms: number): Value {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** Set the title of the window. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title === "" ? "Headway" : `${title} · Headway`;
  }, [title]);
}
