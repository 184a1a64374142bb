/** Shared UI components. */
import { signal, useText } from "./signals.ts";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { copyText } from "./copy.ts";
import { clip, countdown, count, duration, inZone, instant, relative, SECOND, shortId, timeLeft, visible } from "./format.ts";
import { lookOf, type Shape } from "./statuses.ts";
import { now } from "./state.ts";
import { go, goBack, href } from "./router.ts";
import type { JobNews } from "./models.ts";
import { scheduleHref, type Ref } from "./whose.ts";

// --- states: shape, word and colour

/** Each drawn on a field of 16 by 16, by lines or with its inside filled. */
export const SHAPES: Readonly<Record<Shape, readonly [path: string, kind?: "filled"]>> = {
  check: ["M3 8.5 6.5 12 13 4.5"],
  cross: ["M4 4l8 8M12 4l-8 8"],
  play: ["M5 3.5v9l7-4.5z", "filled"],
  ring: ["M8 3a5 5 0 1 0 .01 0"],
  clock: ["M8 2.5a5.5 5.5 0 1 0 .01 0M8 5v3.2l2.3 1.6"],
  retry: ["M12.5 6.5A5 5 0 1 0 13 9M13 3v3.7H9.3"],
  block: ["M3.5 3.5h9v9h-9zM5 5l6 6"],
  dash: ["M3 8h10"],
  alarm: ["M8 2.5 14 13H2zM8 6.5v3M8 11.2v.1"],
  pause: ["M5.5 3.5v9M10.5 3.5v9"],
  half: ["M8 3a5 5 0 0 1 0 10zM8 3a5 5 0 1 0 0 10"],
};

export function Icon({ shape }: { shape: Shape }) {
  const [path, kind] = SHAPES[shape];
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={path} class={kind} />
    </svg>
  );
}

export function Badge({ state, word }: { state: string; word?: string }) {
  const look = lookOf(state);
  return (
    <span class={`badge tone-${look.tone}`}>
      <Icon shape={look.shape} />
      {word ?? look.word}
    </span>
  );
}

// --- times

interface Tip {
  x: number;
  y: number;
  lines: [string, string][];
}

const tip = signal<Tip | null>(null);

/** Shows the exact time beside the relative one that has the pointer or the focus; also above dialogs. */
export function TimeTip() {
  const shown = tip.value;
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (shown === null) element.current?.hidePopover?.();
    else element.current?.showPopover?.();
  }, [shown]);
  return (
    <div ref={element} id="time-tip" role="tooltip" class="tip" popover="manual" style={{ "--x": `${shown?.x ?? 0}px`, "--y": `${shown?.y ?? 0}px` }}>
      {shown?.lines.map(([name, text]) => (
        <div key={name}>
          <span class="tip-name">{name}</span> {text}
        </div>
      ))}
    </div>
  );
}

/** A time, relative; exact in UTC, here and in the zone of the schedule with the pointer or the focus. A click copies it. */
export function Time({ at, zone, ahead = false }: { at: string | null | undefined; zone?: string | undefined; ahead?: boolean }) {
  const moment = instant(at);
  const text = useText(() => (ahead ? countdown(moment, now.value) : relative(moment, now.value)), [moment, ahead]);
  if (Number.isNaN(moment)) return <span class="faint">–</span>;
  const show = (event: JSX.TargetedEvent<HTMLElement>): void => {
    const box = event.currentTarget.getBoundingClientRect();
    const lines: [string, string][] = [
      ["UTC", inZone(moment, "UTC")],
      ["here", inZone(moment, undefined)],
    ];
    if (zone && zone !== "UTC") lines.push([zone, inZone(moment, zone)]);
    tip.value = { x: Math.max(8, Math.min(box.left, innerWidth - 280)), y: box.bottom + 4, lines };
  };
  const hide = (): void => {
    tip.value = null;
  };
  return (
    <time
      class="time"
      dateTime={at ?? ""}
      tabIndex={0}
      aria-describedby="time-tip"
      onMouseEnter={show}
      onMouseLeave={hide}
      onFocus={show}
      onBlur={hide}
      onClick={() => void copyText(at ?? "", "The time")}
    >
      {text}
    </time>
  );
}

/** The elapsed time, counting. */
export function Since({ at }: { at: string | null | undefined }) {
  const moment = instant(at);
  const text = useText(() => duration(Math.max(0, Math.floor((now.value - moment) / SECOND) * SECOND)), [moment]);
  return Number.isNaN(moment) ? <span class="faint">–</span> : <span>{text}</span>;
}

// --- progress

/** The progress of a job, with an equivalent text. */
export function Progress({ job, isLarge = false }: { job: JobNews; isLarge?: boolean }) {
  const words = useText(() => progressWords(job), [job]);
  const isUnknown = job.progress === 0 && !job.detail?.step && !job.detail?.total;
  return (
    <div class={`progress ${isLarge ? "large" : ""}`}>
      <div
        class={`bar ${isUnknown ? "unknown" : ""}`}
        role="progressbar"
        aria-label={`Progress of ${job.type}`}
        aria-valuemin={0}
        aria-valuemax={100}
        {...(isUnknown ? {} : { "aria-valuenow": Math.round(job.progress) })}
        aria-valuetext={words}
      >
        <div class="fill" style={{ "--part": String(job.progress / 100) }} />
      </div>
      <span class="progress-words">{words}</span>
    </div>
  );
}

/** A bar with a text: how much of something is in use. */
export function Gauge({ label, value, most, children }: { label: string; value: number; most: number; children: ComponentChildren }) {
  return (
    <>
      <div class="gauge" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={most} aria-valuenow={Math.min(value, most)}>
        <i style={{ "--part": String(most ? Math.min(1, value / most) : 0) }} />
      </div>
      <span class="figure">{children}</span>
    </>
  );
}

/** Describe the progress of a job: `65% · Transcoding 720p · 1,310 of 2,016 · about 4m left`. */
export function progressWords(job: JobNews): string {
  const detail = job.detail;
  const parts: string[] = [];
  if (job.progress > 0 || detail) parts.push(`${Math.floor(job.progress)}%`);
  const place = detail?.steps?.findIndex((step) => step.state === "running") ?? -1;
  const step = detail?.step ?? (typeof job.metadata["current_step"] === "string" ? job.metadata["current_step"] : "");
  if (step) parts.push(visible(clip(step, 60)) + (place >= 0 ? ` (step ${place + 1} of ${detail?.steps?.length ?? 0})` : ""));
  if (detail?.total && detail.done !== undefined) parts.push(`${count(Math.floor(detail.done))} of ${count(Math.ceil(detail.total))}`);
  const left = timeLeft(job.eta_at, now.value);
  if (left) parts.push(left);
  return parts.join(" · ") || "no progress reported yet";
}

// --- texts

/** User text: shown verbatim, with invisible characters escaped. */
export function Text({ of, most = 300 }: { of: string | null | undefined; most?: number }) {
  return <>{visible(clip(of ?? "", most))}</>;
}

/** A text of ours in which ids of jobs are links. */
export function Linked({ of, most = 300 }: { of: string; most?: number }) {
  const parts = clip(of, most).split(/\b(job_[0-9a-z]{26})\b/);
  return <>{parts.map((part, place) => (place % 2 ? <JobLink key={place} id={part} /> : visible(part)))}</>;
}

export function JobLink({ id, children }: { id: string; children?: ComponentChildren }) {
  return (
    <a href={href(["jobs", id])} title={id}>
      {children ?? <code>{shortId(id)}</code>}
    </a>
  );
}

export function LimitLink({ name }: { name: string }) {
  return (
    <a href={href(["limits", name])}>
      <Text of={name} most={80} />
    </a>
  );
}

export function TenantLink({ name }: { name: string }) {
  return (
    <a href={href(["tenants", name])}>
      <Text of={name} most={80} />
    </a>
  );
}

export function ScheduleLink({ name, tenant }: Ref) {
  return (
    <a href={scheduleHref({ name, tenant })}>
      <Text of={name} most={80} />
    </a>
  );
}

export function Copy({ text, what = "Copied" }: { text: string; what?: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    await copyText(text, what);
    setDone(true);
    setTimeout(() => setDone(false), 1_500);
  };
  return (
    <button type="button" class="small ghost" onClick={() => void copy()}>
      {isDone ? "Copied" : "Copy"}
    </button>
  );
}

/** A command to copy. */
export function Command({ line, label }: { line: string; label?: string }) {
  return (
    <div class="command">
      {label && <span class="command-label">{label}</span>}
      <code tabIndex={0}>
        {line.split(" ").map((word, place) => (
          // A line breaks between words only, never after a hyphen, so that it can be read aloud and typed.
          <span key={place}>{word} </span>
        ))}
      </code>
      <Copy text={line} what="The command" />
    </div>
  );
}

// --- parts of pages

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h3>{title}</h3>
      {children}
    </div>
  );
}

export function Problem({ words, again }: { words: string | null; again?: () => void }) {
  if (words === null) return null;
  return (
    <div class="problem" role="alert">
      <Icon shape="alarm" />
      <span>{visible(words)}</span>
      {again && (
        <button type="button" class="small" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <p class="loading" role="status">
      Reading {what} …
    </p>
  );
}

export function Card({ title, aside, children, id }: { title?: ComponentChildren; aside?: ComponentChildren; children: ComponentChildren; id?: string }) {
  return (
    <section class="card" {...(id ? { id, "aria-labelledby": `${id}-title` } : {})}>
      {title && (
        <header>
          <h2 {...(id ? { id: `${id}-title` } : {})}>{title}</h2>
          {aside && <div class="aside">{aside}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

/** A column: its title, and the class of its cells. A column that is false is left out with its cells. */
export type Column = readonly [head: ComponentChildren, kind?: string] | false;

/** The column of buttons, whose title is for screen readers only. */
export const DO: Column = [<span class="offscreen">Actions</span>, "cell-do"];

/** A row: the content of its cells, column by column. */
export interface Line {
  key: string;
  cells: readonly ComponentChildren[];
  class?: string;
  onFocusCapture?: () => void;
}

/** A table that scrolls sideways if it must; on a phone each row is a card. */
export function Table({ label, columns, lines }: { label: string; columns: readonly Column[]; lines: readonly Line[] }) {
  return (
    <div class="table-frame" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {columns.map(
              (column, place) =>
                column && (
                  <th key={place} scope="col">
                    {column[0]}
                  </th>
                ),
            )}
          </tr>
        </thead>
        <tbody>
          {lines.map(({ cells, ...rest }) => (
            <tr {...rest}>
              {columns.map(
                (column, place) =>
                  column && (
                    <td key={place} class={column[1]} data-label={typeof column[0] === "string" ? column[0] : undefined}>
                      {cells[place]}
                    </td>
                  ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface Things<Item> {
  id: string;
  title: string;
  aside?: ComponentChildren;
  /** Content above the table: an error, a filter. */
  before?: ComponentChildren;
  columns: readonly Column[];
  /** Undefined while loading. */
  items: readonly Item[] | undefined;
  /** The content for an empty list. */
  empty: ComponentChildren;
  row: (item: Item, place: number) => Line;
  children?: ComponentChildren;
}

/** A card with a table, or with a text if it is empty. */
export function Collection<Item>({ id, title, aside, before, columns, items, empty, row, children }: Things<Item>) {
  return (
    <Card id={id} title={title} aside={aside}>
      {before}
      {items?.length === 0 && empty}
      {items !== undefined && items.length > 0 && <Table label={`Table: ${title.toLowerCase()}`} columns={columns} lines={items.map(row)} />}
      {children}
    </Card>
  );
}

/** A select; `isInline` for one whose options need no visible label. */
export function Select({ label, value, onValue, options, isInline = false }: { label: string; value: string; onValue: (value: string) => void; options: readonly (readonly [value: string, words?: string])[]; isInline?: boolean }) {
  return (
    <label class={isInline ? "inline" : ""}>
      <span class={isInline ? "offscreen" : ""}>{label}</span>
      <select value={value} onChange={(event) => onValue(event.currentTarget.value)}>
        {options.map(([one, words]) => (
          <option key={one} value={one}>
            {words ?? one}
          </option>
        ))}
      </select>
    </label>
  );
}

/** The legend of a chart. */
export function Legend({ keys }: { keys: readonly (readonly [string, string])[] }) {
  return (
    <span class="legend">
      {keys.map(([colour, words]) => (
        <span key={words} class={`key key-${colour}`}>
          {words}
        </span>
      ))}
    </span>
  );
}

export function Facts({ rows }: { rows: readonly (readonly [string, ComponentChildren] | null)[] }) {
  return (
    <dl class="facts">
      {rows.map(
        (row) =>
          row !== null && (
            <div key={row[0]}>
              <dt>{row[0]}</dt>
              <dd>{row[1]}</dd>
            </div>
          ),
      )}
    </dl>
  );
}

/** Collapsible content. */
export function Fold({ title, children, isOpen = false }: { title: ComponentChildren; children: () => ComponentChildren; isOpen?: boolean }) {
  const [open, setOpen] = useState(isOpen);
  return (
    <details class="fold" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{title}</summary>
      {open && children()}
    </details>
  );
}

/** The pager of a list by name. */
export function NextPage({ path, next, after }: { path: string; next: string | null; after: string | undefined }) {
  if (next === null && after === undefined) return null;
  return (
    <nav class="pager" aria-label="Pages of the list">
      <a class="button" href={href([path])} {...(after === undefined ? { "aria-disabled": "true" as const } : {})}>
        First
      </a>
      {next !== null && (
        <a class="button" href={href([path], { cursor: next })}>
          More
        </a>
      )}
    </nav>
  );
}

export function Pager({ isFirst, next, above, onNext }: { isFirst: boolean; next: string | null; above: string; onNext: (cursor: string) => void }) {
  if (isFirst && next === null) return null;
  return (
    <nav class="pager" aria-label="Older and newer">
      <button type="button" disabled={isFirst} onClick={() => go(above)}>
        Newest
      </button>
      <button type="button" disabled={isFirst} onClick={() => goBack(above)}>
        Back
      </button>
      <button type="button" disabled={next === null} onClick={() => next !== null && onNext(next)}>
        Older
      </button>
    </nav>
  );
}
