/**
 * Signals: a component that reads one while it renders is rendered again when it changes.
 *
 * Two option hooks of Preact, which its own packages use too, tell when a component renders. The other features of
 * a signals library are not needed here, and it would be larger than this.
 */
import { options, type Component, type VNode } from "preact";
import { useEffect, useState } from "preact/hooks";

interface Reader {
  sources: Set<Signal<unknown>>;
  changed: () => void;
}

let reader: Reader | null = null;

export class Signal<Value> {
  readonly readers = new Set<Reader>();

  constructor(private kept: Value) {}

  get value(): Value {
    if (reader !== null) {
      this.readers.add(reader);
      reader.sources.add(this as Signal<unknown>);
    }
    return this.kept;
  }

  set value(next: Value) {
    if (Object.is(next, this.kept)) return;
    this.kept = next;
    for (const one of [...this.readers]) one.changed();
  }
}

/** Create a signal. */
export function signal<Value>(first: Value): Signal<Value> {
  return new Signal(first);
}

function leave(mine: Reader): void {
  for (const source of mine.sources) source.readers.delete(mine);
  mine.sources.clear();
}

/** Run an effect now, and again whenever a signal that it read changes, until the returned function is called. */
export function effect(what: () => void): () => void {
  const run = (): void => {
    leave(mine);
    const before = reader;
    reader = mine;
    try {
      what();
    } finally {
      reader = before;
    }
  };
  const mine: Reader = { sources: new Set(), changed: run };
  run();
  return () => leave(mine);
}

/** Compute a text from signals; the component renders again only if the text changes. */
export function useText(make: () => string, inputs: readonly unknown[]): string {
  const [, setText] = useState(() => untracked(make));
  useEffect(() => effect(() => setText(make())), inputs);
  return untracked(make);
}

function untracked<Value>(what: () => Value): Value {
  const before = reader;
  reader = null;
  try {
    return what();
  } finally {
    reader = before;
  }
}

// --- components

const readers = new WeakMap<Component, Reader>();
const hooks = options as typeof options & { __r?: (vnode: Drawn) => void };
type Drawn = VNode & { __c?: Component | null };
const { __r: beforeDrawing, diffed, unmount } = hooks;

hooks.__r = (vnode) => {
  reader = null; // Reads before this belong to no component.
  beforeDrawing?.(vnode);
  const component = vnode.__c!;
  let mine = readers.get(component);
  if (mine === undefined) {
    mine = { sources: new Set(), changed: () => component.setState({}) };
    readers.set(component, mine);
  }
  leave(mine);
  reader = mine;
};

options.diffed = (vnode) => {
  reader = null;
  diffed?.(vnode);
};

options.unmount = (vnode: Drawn) => {
  const mine = vnode.__c && readers.get(vnode.__c);
  if (mine) leave(mine);
  unmount?.(vnode);
};
