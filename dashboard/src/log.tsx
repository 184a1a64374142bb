/** The log of a job while it grows: follows its end until one scrolls away from it, searches, wraps, copies. */
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { apiUrl, ask, wordsOf } from "./api.ts";
import { copyText } from "./copy.ts";
import { count, counted, inZone, instant, SECOND, visible } from "./format.ts";
import { useEvery, useNews } from "./hooks.ts";
import { bindKeys } from "./keys.ts";
import type { LogLine, Page } from "./types.ts";
import { Card, Problem } from "./ui.tsx";

const PAGE = 200;
const SHOWN_MAX = 5_000;
const EVERY_MS = SECOND;

export function Log({ id, isOver }: { id: string; isOver: boolean }) {
  const [lines, setLines] = useState<readonly LogLine[]>([]);
  const [left, setLeft] = useState(0);
  const [problem, setProblem] = useState<string | null>(null);
  const [words, setWords] = useState("");
  const [wraps, setWraps] = useState(true);
  const [follows, setFollows] = useState(true);
  const [isRead, setRead] = useState(false);
  const last = useRef<number | null>(null);
  const isReading = useRef(false);
  const frame = useRef<HTMLDivElement>(null);

  const read = useCallback(async () => {
    if (isReading.current) return;
    isReading.current = true;
    try {
      for (let page: Page<LogLine> | null = null; page === null || page.items.length === PAGE; ) {
        page = await ask<Page<LogLine>>(apiUrl(["jobs", id, "log"], { limit: PAGE, cursor: last.current }));
        const found = page.items;
        if (!found.length) break;
        last.current = found.at(-1)!.seq;
        setLines((before) => {
          const after = [...before, ...found];
          setLeft((number) => number + Math.max(0, after.length - SHOWN_MAX));
          return after.slice(-SHOWN_MAX);
        });
      }
      setProblem(null);
      setRead(true);
    } catch (error) {
      setProblem(wordsOf(error));
    } finally {
      isReading.current = false;
    }
  }, [id]);

  useEffect(() => void read(), [read, isOver]);
  useEvery(isOver ? undefined : EVERY_MS, () => void read());
  useNews((news) => {
    if (news.some((one) => one.job.id === id)) void read();
  });
  useEffect(() => bindKeys({ f: () => setFollows((before) => !before) }), []);
  useEffect(() => {
    if (follows && frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [lines, follows, wraps]);

  const needle = words.trim().toLowerCase();
  const shown = useMemo(() => (needle ? lines.filter((line) => line.line.toLowerCase().includes(needle)) : lines), [lines, needle]);
  const severalAttempts = lines.length > 0 && lines[0]!.attempt !== lines.at(-1)!.attempt;
  const onScroll = (): void => {
    const element = frame.current;
    if (element === null) return;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 30;
    if (isAtEnd !== follows) setFollows(isAtEnd);
  };

  if (isRead && lines.length === 0 && isOver) return null;
  return (
    <Card
      id="log"
      title="Log"
      aside={
        <div class="log-tools">
          <input type="search" aria-label="Search the log" placeholder="search" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
          <label class="inline">
            <input type="checkbox" checked={follows} onChange={() => setFollows(!follows)} /> follow
          </label>
          <label class="inline">
            <input type="checkbox" checked={wraps} onChange={() => setWraps(!wraps)} /> wrap
          </label>
          <button type="button" class="small ghost" onClick={() => void copyText(shown.map((line) => `${line.at} ${line.line}`).join("\n"), counted(shown.length, "line"))}>
            Copy
          </button>
        </div>
      }
    >
      <Problem words={problem} again={() => void read()} />
      {left > 0 && <p class="faint">{counted(left, "line")} before these are not shown here; `headway jobs logs {id}` has all of them.</p>}
      {lines.length === 0 ? (
        <p class="quiet">{isRead ? "It has logged nothing yet." : "Reading the log …"}</p>
      ) : (
        <div ref={frame} class={`log ${wraps ? "wraps" : ""}`} role="log" aria-live="off" tabIndex={0} aria-label="Log lines" onScroll={onScroll}>
          {shown.map((line) => (
            <div key={String(line.seq)} class={`log-line stream-${/^[a-z]+$/.test(line.stream) ? line.stream : "other"}`}>
              <time dateTime={line.at} title={line.at}>
                {inZone(instant(line.at), undefined).slice(11, 19)}
              </time>
              {severalAttempts && <span class="faint">#{line.attempt}</span>}
              <span class="log-words">{visible(line.line)}</span>
            </div>
          ))}
        </div>
      )}
      {needle !== "" && <p class="faint">{count(shown.length)} of {counted(lines.length, "line")}</p>}
    </Card>
  );
}
