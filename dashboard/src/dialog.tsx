/** Dialogs: the browser's own, which keeps the focus inside and gives it back. One question is asked at a time. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { count, visible } from "./format.ts";
import { Command, Problem } from "./ui.tsx";
import { wordsOf } from "./api.ts";

export function Dialog({ title, onClose, children, isWide = false }: { title: string; onClose: () => void; children: ComponentChildren; isWide?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={isWide ? "wide" : ""}
      aria-labelledby="dialog-title"
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onMouseDown={(event) => event.target === element.current && onClose()}
    >
      <div class="dialog-body">
        <header>
          <h2 id="dialog-title">{visible(title)}</h2>
          <button type="button" class="ghost" aria-label="Close" onClick={onClose}>
            ×
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

export interface Question {
  title: string;
  /** What will happen, in words. */
  words: ComponentChildren;
  /** The word on the button. */
  verb: string;
  isGrave?: boolean;
  command?: string;
  /** Asks for a reason, which is handed on. */
  asksReason?: boolean;
  /** From so many things on, the number has to be typed. */
  number?: number;
  act: (reason: string) => Promise<void>;
}

const TYPED_FROM = 1_000;
const question = signal<Question | null>(null);

/** Ask once, with what would happen and the command that does the same. */
export function confirm(asked: Question): void {
  question.value = asked;
}

export function Confirm() {
  const asked = question.value;
  return asked === null ? null : <Asking key={asked.title} asked={asked} />;
}

function Asking({ asked }: { asked: Question }) {
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const mustType = (asked.number ?? 0) >= TYPED_FROM;
  const close = (): void => {
    question.value = null;
  };
  const act = async (): Promise<void> => {
    setBusy(true);
    try {
      await asked.act(reason);
      close();
    } catch (error) {
      setProblem(wordsOf(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title={asked.title} onClose={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void act();
        }}
      >
        <div class="words">{asked.words}</div>
        {asked.asksReason && (
          <label>
            Why, for those who will ask
            <input value={reason} maxLength={300} onInput={(event) => setReason(event.currentTarget.value)} />
          </label>
        )}
        {mustType && (
          <label>
            Type {asked.number} to go on
            <input inputMode="numeric" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          </label>
        )}
        {asked.command && <Command line={asked.command} label="The same in a terminal" />}
        <Problem words={problem} />
        <footer>
          <button type="button" onClick={close}>
            Leave it
          </button>
          <button type="submit" class={asked.isGrave ? "grave" : "main"} disabled={isBusy || (mustType && typed.replace(/\D/g, "") !== String(asked.number))}>
            {isBusy ? "…" : asked.verb}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

/** How far a long series of requests is. */
export function Series({ done, total }: { done: number; total: number }) {
  return (
    <p role="status">
      {count(done)} of {count(total)} done
    </p>
  );
}
