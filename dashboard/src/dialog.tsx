/** Dialogs: the native element, which traps the focus and restores it. One dialog at a time. */
import { signal } from "./signals.ts";
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { wordsOf } from "./api.ts";
import { visible } from "./format.ts";
import { Command, Problem } from "./ui.tsx";

export function Dialog({ title, onClose, children, isWide = false }: { title: string; onClose: () => void; children: ComponentChildren; isWide?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  // Synchronously, so that the next key goes into it.
  useLayoutEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    // The browser would focus the close button. Focus the first field instead, else the main button.
    (dialog?.querySelector<HTMLElement>("[autofocus], form :is(input, textarea, select):not(:disabled)") ?? dialog?.querySelector<HTMLElement>("[data-first]") ?? dialog?.querySelector("h2"))?.focus();
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
      // A browser may close it without a cancel event, after one was refused without user interaction since.
      onClose={(event) => event.currentTarget.isConnected && onClose()}
      onMouseDown={(event) => event.target === element.current && onClose()}
    >
      <div class="dialog-body">
        <header>
          <h2 id="dialog-title" tabIndex={-1}>{visible(title)}</h2>
          <button type="button" class="ghost" aria-label="Close" onClick={onClose}>
            ×
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface Form {
  title: string;
  onClose: () => void;
  /** Runs the action; an error is shown, and the form stays. */
  act: () => Promise<void>;
  /** The word on the button. */
  verb: string;
  isGrave?: boolean;
  isReady?: boolean;
  isWide?: boolean;
  command?: string | undefined;
  /** A validation error, found before sending. */
  problem?: string | null;
  children: ComponentChildren;
}

/** A dialog with a form, the equivalent command, and one submit button. */
export function FormDialog({ title, onClose, act, verb, isGrave = false, isReady = true, isWide = false, command, problem = null, children }: Form) {
  const [isBusy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState<string | null>(null);
  const submit = async (): Promise<void> => {
    setBusy(true);
    setRefusal(null);
    try {
      await act();
    } catch (error) {
      setRefusal(wordsOf(error));
    }
    setBusy(false);
  };
  return (
    <Dialog title={title} onClose={onClose} isWide={isWide}>
      <form
        onInput={() => setRefusal(null)}
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        {children}
        {command && <Command line={command} label="The same in a terminal" />}
        <Problem words={refusal ?? problem} />
        <footer>
          <button type="button" data-first={isGrave ? "" : undefined} onClick={onClose}>
            {isGrave ? "Keep" : "Cancel"}
          </button>
          <button type="submit" data-first={isGrave ? undefined : ""} class={isGrave ? "grave" : "main"} disabled={isBusy || !isReady}>
            {verb}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

/** A field with a line of text in it. */
export function Field({ label, value, onValue, ...rest }: { label: string; value: string; onValue: (value: string) => void } & Omit<JSX.IntrinsicElements["input"], "label" | "value">) {
  return (
    <label>
      {label}
      <input value={value} spellcheck={false} autocomplete="off" {...rest} onInput={(event) => onValue(event.currentTarget.value)} />
    </label>
  );
}

/** The options of a confirmation. */
export interface Answers {
  reason: string;
  until: string;
}

export interface Question {
  title: string;
  /** What will happen, in words. */
  words: ComponentChildren;
  /** The word on the button. */
  verb: string;
  isGrave?: boolean;
  command?: (answers: Answers) => string;
  /** Asks for a reason, which is passed on. */
  asksReason?: boolean;
  /** Asks until when; nothing means until it is undone. */
  asksUntil?: boolean;
  /** From this number of items on, the number has to be typed. */
  number?: number;
  act: (answers: Answers) => Promise<void>;
}

const TYPED_FROM = 1_000;
const question = signal<Question | null>(null);

/** Ask for confirmation, with the effect and the equivalent command. */
export function confirm(asked: Question): void {
  question.value = asked;
}

export function Confirm() {
  const asked = question.value;
  return asked === null ? null : <Asking key={asked.title} asked={asked} />;
}

function Asking({ asked }: { asked: Question }) {
  const [reason, setReason] = useState("");
  const [until, setUntil] = useState("");
  const [typed, setTyped] = useState("");
  const mustType = (asked.number ?? 0) >= TYPED_FROM;
  const close = (): void => {
    question.value = null;
  };
  const answers = { reason: reason.trim(), until: until.trim() };
  return (
    <FormDialog
      title={asked.title}
      onClose={close}
      act={async () => {
        await asked.act(answers);
        close();
      }}
      verb={asked.verb}
      isGrave={asked.isGrave ?? false}
      isReady={!mustType || typed.replace(/\D/g, "") === String(asked.number)}
      command={asked.command?.(answers)}
    >
      <div class="words">{asked.words}</div>
      {asked.asksUntil && <Field label="Duration or end time; empty: until resumed" placeholder="2h, or 2027-01-31T06:00" maxLength={40} value={until} onValue={setUntil} />}
      {asked.asksReason && <Field label="Reason (recorded in the audit log)" maxLength={300} value={reason} onValue={setReason} />}
      {mustType && <Field label={`Type ${asked.number} to go on`} inputMode="numeric" value={typed} onValue={setTyped} />}
    </FormDialog>
  );
}
