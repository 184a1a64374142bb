/** The command palette (Ctrl-K). Searches schedules and jobs while the user types. */
import { useEffect, useRef, useState } from "preact/hooks";
import { apiUrl, ask } from "./api.ts";
import { Dialog } from "./dialog.tsx";
import { shortId, visible } from "./format.ts";
import { HELP, PAGES, showsHelp, showsPalette } from "./keys.ts";
import { togglePause } from "./live.ts";
import { go, href } from "./router.ts";
import { nextTheme } from "./state.ts";
import { lookOf } from "./statuses.ts";
import { STATUSES, type Page, type Schedule } from "./models.ts";
import type { Job } from "./types.ts";
import { useSettled } from "./hooks.ts";
import { scheduleHref, scheduleLabel } from "./whose.ts";

interface Entry {
  words: string;
  kind: string;
  act: () => void;
}

const FIXED: readonly Entry[] = [
  ...PAGES.map((page) => ({ words: page.name, kind: "page", act: () => go(`#/${page.path}`) })),
  ...STATUSES.map((status) => ({ words: `Jobs: ${lookOf(status).word.toLowerCase()}`, kind: "filter", act: () => go(href(["jobs"], { status })) })),
  { words: "New schedule", kind: "action", act: () => go("#/schedules?new=1") },
  { words: "New limit", kind: "action", act: () => go("#/limits?new=1") },
  { words: "Set a tenant", kind: "action", act: () => go("#/tenants?new=1") },
  { words: "Pause or resume live updates", kind: "action", act: togglePause },
  { words: "Change the theme", kind: "action", act: nextTheme },
  { words: "Keyboard help", kind: "action", act: () => (showsHelp.value = true) },
];

export function Palette() {
  return showsPalette.value ? <Searching /> : null;
}

function Searching() {
  const [text, setText] = useState("");
  const [place, setPlace] = useState(0);
  const [found, setFound] = useState<readonly Entry[]>([]);
  const settled = useSettled(text.trim(), 150);
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    if (settled.length < 2) return setFound([]);
    const mine = new AbortController();
    void lookUp(settled, mine.signal).then((entries) => mine.signal.aborted || setFound(entries));
    return () => mine.abort();
  }, [settled]);
  const words = text.trim().toLowerCase().split(/\s+/);
  const shown = [...FIXED.filter((entry) => words.every((word) => entry.words.toLowerCase().includes(word))), ...found].slice(0, 12);
  const chosen = Math.min(place, Math.max(0, shown.length - 1));
  const close = (): void => {
    showsPalette.value = false;
  };
  const pick = (entry: Entry | undefined): void => {
    close();
    entry?.act();
  };
  return (
    <Dialog title="Go to" onClose={close}>
      <input
        class="palette-field"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={`palette-${chosen}`}
        aria-label="A page, a schedule, a task or the id of a job"
        placeholder="a page, a schedule, a task, the id of a job"
        autofocus
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setPlace(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setPlace(Math.min(chosen + 1, shown.length - 1));
          else if (event.key === "ArrowUp") setPlace(Math.max(chosen - 1, 0));
          else if (event.key === "Enter") pick(shown[chosen]);
          else return;
          event.preventDefault();
        }}
      />
      <ul ref={list} id="palette-list" role="listbox" class="palette-list" aria-label="Results">
        {shown.map((entry, number) => (
          <li key={`${entry.kind} ${entry.words} ${number}`} id={`palette-${number}`} role="option" aria-selected={number === chosen} onClick={() => pick(entry)}>
            <span>{visible(entry.words)}</span>
            <span class="faint">{entry.kind}</span>
          </li>
        ))}
      </ul>
      {shown.length === 0 && <p class="faint">No matches.</p>}
    </Dialog>
  );
}

async function lookUp(text: string, signal: AbortSignal): Promise<Entry[]> {
  const openJob = (job: Job): Entry => ({
    words: `${job.type} ${shortId(job.id)} ${lookOf(job.status).word.toLowerCase()}`,
    kind: "job",
    act: () => go(href(["jobs", job.id])),
  });
  const [jobs, schedules] = await Promise.all([
    ask<Page<Job>>(apiUrl(["jobs"], { q: text, limit: 5 }), { signal }).catch(() => null),
    ask<Page<Schedule>>(apiUrl(["schedules"], { q: text, limit: 6 }), { signal }).catch(() => null),
  ]);
  const openSchedule = (schedule: Schedule): Entry => ({ words: scheduleLabel(schedule), kind: "schedule", act: () => go(scheduleHref(schedule)) });
  const entries = [...(schedules?.items ?? []).map(openSchedule), ...(jobs?.items ?? []).map(openJob)];
  entries.push({ words: `Jobs with “${text}”`, kind: "search", act: () => go(href(["jobs"], { q: text })) });
  return entries;
}

export function Help() {
  if (!showsHelp.value) return null;
  return (
    <Dialog title="Keyboard" onClose={() => (showsHelp.value = false)}>
      <dl class="keys">
        {HELP.map(([key, words]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
      <p class="faint">Single letters can be turned off in the settings.</p>
    </Dialog>
  );
}
