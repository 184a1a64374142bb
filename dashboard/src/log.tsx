/** The log of a job: its end first, older lines on demand; follows new lines until the user scrolls away. */
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { apiUrl, ask, wordsOf } from "./api.ts";
import { copyText } from "./copy.ts";
import { count, counted, inZone, instant, SECOND, visible } from "./format.ts";
import { useEvery, useNews } from "./hooks.ts";
import { bindKeys } from "./keys.ts";
import type { Page } from "./models.ts";
import type { LogLine } from "./types.ts";
import { Card, Problem } from "./ui.tsx";

const PAGE = 200;
const SHOWN_MAX = 5_000;
const EVERY_MS = SECOND;

/** Return the logger of a line, and its level if that is notable. */
function sourceOf({ level = "info", logger }: LogLine): string {
  return [level === "info" ? "" : level.toUpperCase(), logger ?? ""].filter(Boolean).join(" ");
}

export function Log({ id, isOver }: { id: string; isOver: boolean }) {
  const [lines, setLines] = useState<readonly LogLine[]>([]);
  const [hasOlder, setHasOlder] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const [words, setWords] = useState("");
  const [wraps, setWraps] = useState(true);
  const [follows, setFollows] = useState(true);
  const [isRead, setRead] = useState(false);
  const last = useRef<number | null>(null);
  const isReading = useRef(false);
  const frame = useRef<HTMLDivElement>(null);
  // The distance to the end, kept when older lines are inserted above.
  const keeps = useRef<number | null>(null);
  const scrolled = useRef(0);

  const readPage = (order: "asc" | "desc", cursor: number | null): Promise<Page<LogLine>> => ask<Page<LogLine>>(apiUrl(["jobs", id, "log"], { limit: PAGE, order, cursor }));
  const reading = async (what: () => Promise<void>): Promise<void> => {
    if (isReading.current) return;
    isReading.current = true;
    try {
      await what();
      setProblem(null);
      setRead(true);
    } catch (error) {
      setProblem(wordsOf(error));
    } finally {
      isReading.current = false;
    }
  };
  const read = useCallback(
    () =>
      reading(async () => {
        if (last.current === null) {
          const end = await readPage("desc", null);
          if (!end.items.length) return;
          last.current = end.items[0]!.seq;
          setLines([...end.items].reverse());
          setHasOlder(end.next_cursor !== null);
          return;
        }
        for (let found: readonly LogLine[] | null = null; found === null || found.length === PAGE; ) {
          found = (await readPage("asc", last.current)).items;
          if (!found.length) break;
          last.current = found.at(-1)!.seq;
          const added = found;
          setLines((before) => {
            const after = [...before, ...added];
            if (after.length > SHOWN_MAX) setHasOlder(true);
            return after.slice(-SHOWN_MAX);
          });
        }
      }),
    [id],
  );
  const readOlder = (): Promise<void> =>
    reading(async () => {
      const found = await readPage("desc", lines[0]?.seq ?? null);
      const element = frame.current;
      if (element) keeps.current = element.scrollHeight - element.scrollTop;
      setFollows(false);
      setLines((before) => [...[...found.items].reverse(), ...before]);
      setHasOlder(found.next_cursor !== null);
    });
  useLayoutEffect(() => {
    if (keeps.current !== null && frame.current) frame.current.scrollTop = frame.current.scrollHeight - keeps.current;
    keeps.current = null;
  }, [lines]);

  useEffect(() => void read(), [read, isOver]);
  useEvery(isOver ? undefined : EVERY_MS, () => void read());
  useNews((news) => {
    if (news.some((one) => one.job.id === id)) void read();
  });
  useLayoutEffect(() => bindKeys({ f: () => setFollows((before) => !before) }), []);
  useLayoutEffect(() => {
    if (follows && frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [lines, follows, wraps]);

  const needle = words.trim().toLowerCase();
  const shown = useMemo(() => (needle ? lines.filter((line) => `${line.level ?? ""} ${line.logger ?? ""} ${line.line}`.toLowerCase().includes(needle)) : lines), [lines, needle]);
  const severalAttempts = lines.length > 0 && lines[0]!.attempt !== lines.at(-1)!.attempt;
  const onScroll = (): void => {
    const element = frame.current;
    if (element === null) return;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 30;
    // The scroll event comes a frame later. New lines meanwhile do not mean that the user scrolled; moving up does.
    const goesUp = element.scrollTop < scrolled.current;
    scrolled.current = element.scrollTop;
    if (isAtEnd || goesUp) setFollows(isAtEnd);
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
          <button type="button" class="small ghost" onClick={() => void copyText(shown.map((line) => [line.at, sourceOf(line), line.line].filter(Boolean).join(" ")).join("\n"), counted(shown.length, "line"))}>
            Copy
          </button>
        </div>
      }
    >
      <Problem words={problem} again={() => void read()} />
      {lines.length === 0 ? (
        <p class="quiet">{isRead ? "It has logged nothing yet." : "Reading the log …"}</p>
      ) : (
        <div ref={frame} class={`log ${wraps ? "wraps" : ""}`} role="log" aria-live="off" tabIndex={0} aria-label="Log lines" onScroll={onScroll}>
          {hasOlder && lines.length < SHOWN_MAX && (
            <button type="button" class="small ghost" onClick={() => void readOlder()}>
              Older lines
            </button>
          )}
          {hasOlder && lines.length >= SHOWN_MAX && <p class="faint">`headway jobs logs {id}` has what was before.</p>}
          {shown.map((line) => (
            <div key={String(line.seq)} class={`log-line stream-${/^[a-z]+$/.test(line.stream) ? line.stream : "other"} level-${/^[a-z]+$/.test(line.level ?? "") ? line.level : "info"}`}>
              <time dateTime={line.at} title={line.at}>
                {inZone(instant(line.at), undefined).slice(11, 19)}
              </time>
              {severalAttempts && <span class="faint">#{line.attempt}</span>}
              {sourceOf(line) && <span class="log-source">{visible(sourceOf(line))}</span>}
              <span class="log-words">{visible(line.line)}</span>
            </div>
          ))}
        </div>
      )}
      {needle !== "" && (
        <p class="faint">
          {count(shown.length)} of {counted(lines.length, "line")}
          {hasOlder && "; older ones are not read yet"}
        </p>
      )}
    </Card>
  );
}
