/** The frame around every page: navigation, live state, caller. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Confirm } from "./dialog.tsx";
import { count } from "./format.ts";
import { PAGES, showsHelp, showsPalette } from "./keys.ts";
import { liveState, togglePause, type LiveState } from "./live.ts";
import { Help, Palette } from "./palette.tsx";
import { route } from "./router.ts";
import { me, nextTheme, stats, theme } from "./state.ts";
import { Icon, TimeTip } from "./ui.tsx";
import type { Shape } from "./statuses.ts";

const LIVE: Readonly<Record<LiveState, { word: string; tone: string; shape: Shape; hint: string }>> = {
  connecting: { word: "connecting", tone: "wait", shape: "ring", hint: "Opening the live connection." },
  live: { word: "live", tone: "good", shape: "check", hint: "Changes are shown as they happen. Press to pause." },
  reconnecting: { word: "reconnecting", tone: "warn", shape: "retry", hint: "The connection broke; reconnecting automatically." },
  polling: { word: "polling", tone: "warn", shape: "clock", hint: "Streaming is blocked; data is reloaded every 5 seconds." },
  paused: { word: "paused", tone: "calm", shape: "pause", hint: "Updates are paused. Press to resume." },
  asleep: { word: "idle", tone: "calm", shape: "pause", hint: "The tab was hidden; it resumes when you return." },
};

export function Shell({ children }: { children: ComponentChildren }) {
  const here = route.value.path[0] ?? "";
  const main = useRef<HTMLElement>(null);
  const address = route.value.path.join("/");
  const isFirst = useRef(true);
  // During the render, not after it: by then the user may already be typing.
  useLayoutEffect(() => {
    if (isFirst.current) isFirst.current = false;
    else {
      main.current?.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  }, [address]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the page
      </a>
      <header class="top">
        <a class="brand" href="#/">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <rect width="32" height="32" rx="7" class="brand-field" />
            <path d="M7 11h12M7 16h18M7 21h8" class="brand-lines" />
          </svg>
          <span>Headway</span>
        </a>
        <nav aria-label="Pages">
          <ul>
            {PAGES.map((page) => (
              <li key={page.path}>
                <a href={`#/${page.path}`} {...(page.path === here ? { "aria-current": "page" as const } : {})}>
                  {page.name}
                  <Number page={page.path} />
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <div class="tools">
          <LivePill />
          <span class="offscreen" role="status">
            {liveState.value === "live" || liveState.value === "connecting" ? "" : `Live updates: ${LIVE[liveState.value].word}`}
          </span>
          <button type="button" class="ghost wide-only" onClick={() => (showsPalette.value = true)} title="Go to … (Ctrl K)">
            Go to<kbd>Ctrl K</kbd>
          </button>
          <button type="button" class="ghost" onClick={nextTheme} aria-label={`${theme.value === "dark" ? "Dark" : theme.value === "light" ? "Light" : "Auto"}: the theme. Change it.`} title={`Theme: ${theme.value}`}>
            {theme.value === "dark" ? "Dark" : theme.value === "light" ? "Light" : "Auto"}
          </button>
          <button type="button" class="ghost wide-only" onClick={() => (showsHelp.value = true)} aria-label="Keyboard help" title="Keyboard (?)">
            ?
          </button>
          {me.value?.token_id && (
            <a class="who" href="#/settings">
              {me.value.name}
            </a>
          )}
        </div>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        {children}
      </main>
      <TimeTip />
      <Confirm />
      <Palette />
      <Help />
    </>
  );
}

/** The number of problems, beside the name of the page. */
function Number({ page }: { page: string }) {
  const figures = stats.value;
  if (figures === null) return null;
  const number = page === "problems" ? figures.dead.total + figures.failing.length + figures.degraded.length : page === "jobs" ? (figures.jobs.RUNNING ?? 0) : 0;
  if (!number) return null;
  return (
    <span class={`number ${page === "problems" ? "tone-bad" : "tone-busy"}`}>
      {count(number)}
      <span class="offscreen">{page === "problems" ? " to review" : " running"}</span>
    </span>
  );
}

function LivePill() {
  const look = LIVE[liveState.value];
  return (
    <button type="button" class={`pill tone-${look.tone}`} data-live={liveState.value} onClick={togglePause} title={look.hint}>
      <Icon shape={look.shape} />
      {look.word}
    </button>
  );
}
