/** Jobs: a list to filter, share, select from. Rows change where they are; new ones wait until they are asked for. */
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { bulk } from "../actions.tsx";
import { apiUrl, ask, wordsOf } from "../api.ts";
import { command } from "../cli.ts";
import { filtersOf, readWords, sinceTime, type Filters } from "../filters.ts";
import { count, counted, duration, instant, shellWord } from "../format.ts";
import { useCalm, useNews, useTitle } from "../hooks.ts";
import { bindKeys } from "../keys.ts";
import { liveState, onReadAgain } from "../live.ts";
import { matches, mergedList } from "../merge.ts";
import { go, href, route } from "../router.ts";
import { may, seesAll, serverNow, stats } from "../state.ts";
import { isFinal, lookOf } from "../statuses.ts";
import { say } from "../toasts.tsx";
import { STATUSES, type Job, type Page } from "../types.ts";
import { Badge, Command, Empty, JobLink, Loading, Pager, Problem, Progress, ScheduleLink, Since, Table, Text, Time } from "../ui.tsx";

const PAGE = 50;
const MATCHING_PAGES = 10;
const SINCES: readonly (readonly [string, string])[] = [
  ["", "any time"],
  ["15m", "last 15 minutes"],
  ["1h", "last hour"],
  ["24h", "last 24 hours"],
  ["7d", "last 7 days"],
];

function queryOf(filters: Filters): Record<string, string | undefined> {
  const { since, ...rest } = filters;
  return { ...rest, created_after: sinceTime(since, serverNow()) };
}

export function JobsPage() {
  const filters = filtersOf(route.value.query);
  const cursor = route.value.query["cursor"];
  const name = JSON.stringify(filters);
  useTitle(filters.status ? `${lookOf(filters.status).word} jobs` : "Jobs");
  return (
    <>
      <h1>Jobs</h1>
      <Tabs filters={filters} />
      <FilterBar key={name} filters={filters} />
      <List key={`${name} ${cursor ?? ""}`} filters={filters} cursor={cursor} />
    </>
  );
}

function Tabs({ filters }: { filters: Filters }) {
  const figures = stats.value;
  return (
    <nav class="tabs" aria-label="States">
      <a href={href(["jobs"], { ...filters, status: undefined })} {...(filters.status ? {} : { "aria-current": "true" as const })}>
        All
      </a>
      {STATUSES.map((status) => {
        const number = figures?.jobs[status];
        return (
          <a key={status} href={href(["jobs"], { ...filters, status })} {...(filters.status === status ? { "aria-current": "true" as const } : {})}>
            {lookOf(status).word}
            {number ? <span class="number">{count(number)}</span> : null}
          </a>
        );
      })}
    </nav>
  );
}

function FilterBar({ filters }: { filters: Filters }) {
  const [text, setText] = useState(filters.q ?? "");
  const [showsMore, setShowsMore] = useState(Boolean(filters.queue || filters.tenant || filters.tag || filters.key));
  const change = (changes: Filters): void => go(href(["jobs"], { ...filters, ...changes }));
  const tasks = [...new Set((stats.value?.workers ?? []).flatMap((worker) => worker.tasks))].sort();
  const field = (label: string, name: keyof Filters, list?: string) => (
    <label>
      {label}
      <input
        value={filters[name] ?? ""}
        {...(list ? { list } : {})}
        onChange={(event) => change({ [name]: event.currentTarget.value.trim() })}
        spellcheck={false}
        autocomplete="off"
      />
    </label>
  );
  return (
    <form
      class="filters"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        change({ q: "", ...readWords(text) });
      }}
    >
      <label class="grow">
        Text
        <input data-filter type="search" value={text} placeholder="task, key, schedule, id — or status:failed task:report since:24h" onInput={(event) => setText(event.currentTarget.value)} spellcheck={false} />
      </label>
      {field("Task", "type", "known-tasks")}
      {field("Schedule", "schedule")}
      <label>
        Handed in
        <select value={filters.since ?? ""} onChange={(event) => change({ since: event.currentTarget.value })}>
          {SINCES.map(([value, words]) => (
            <option key={value} value={value}>
              {words}
            </option>
          ))}
          {filters.since && !SINCES.some(([value]) => value === filters.since) && <option value={filters.since}>since {filters.since}</option>}
        </select>
      </label>
      {showsMore && (
        <>
          {field("Queue", "queue")}
          {field("Tag", "tag")}
          {field("Key", "key")}
          {seesAll.value && field("Tenant", "tenant")}
        </>
      )}
      <div class="filter-buttons">
        <button type="submit">Filter</button>
        {!showsMore && (
          <button type="button" class="ghost" onClick={() => setShowsMore(true)}>
            More
          </button>
        )}
        {Object.keys(filters).length > 0 && (
          <a class="button ghost" href="#/jobs">
            Clear
          </a>
        )}
      </div>
      <datalist id="known-tasks">
        {tasks.map((task) => (
          <option key={task} value={task} />
        ))}
      </datalist>
    </form>
  );
}

function List({ filters, cursor }: { filters: Filters; cursor: string | undefined }) {
  const [jobs, setJobs] = useState<readonly Job[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [fresh, setFresh] = useState<ReadonlySet<string>>(new Set());
  const [selected, setSelected] = useState<ReadonlyMap<string, Job>>(new Map());
  const [isCut, setCut] = useState(false);
  const [focus, setFocus] = useState(-1);
  const frame = useRef<HTMLDivElement>(null);
  const isTouched = useRef(false);
  const reading = useRef<AbortController | null>(null);

  const read = useCallback(async () => {
    reading.current?.abort();
    const mine = new AbortController();
    reading.current = mine;
    try {
      const found = await ask<Page<Job>>(apiUrl(["jobs"], { ...queryOf(filters), limit: PAGE, cursor }), { signal: mine.signal });
      setJobs(found.items);
      setNext(found.next_cursor);
      setFresh(new Set());
      setProblem(null);
    } catch (error) {
      if (!mine.signal.aborted) setProblem(wordsOf(error));
    }
  }, []);
  useEffect(() => {
    void read();
    const leave = onReadAgain(() => void read());
    return () => {
      leave();
      reading.current?.abort();
    };
  }, []);

  // A row under the pointer, with the focus or selected must stay where it is: then new ones are counted, not shown.
  const isHeld = (): boolean => isTouched.current || selected.size > 0 || (frame.current?.contains(document.activeElement) ?? false) || scrollY > 200;
  const show = useCalm(() => {
    if (!isHeld() && fresh.size) void read();
  }, 1_000);
  useEffect(() => {
    if (fresh.size) show();
  }, [fresh]);
  useNews((news) => {
    if (jobs === null) return;
    const told = news.map((one) => one.job);
    setJobs((before) => before && mergedList(before, told));
    if (cursor !== undefined) return;
    const known = new Set(jobs.map((job) => job.id));
    const newest = jobs[0]?.id ?? "";
    const added = told.filter((job) => !known.has(job.id) && (job.id > newest || filters.status !== undefined) && matches(job, filters));
    if (added.length) setFresh((before) => new Set([...before, ...added.map((job) => job.id)]));
  });

  const toggle = (job: Job): void =>
    setSelected((before) => {
      const after = new Map(before);
      if (!after.delete(job.id)) after.set(job.id, job);
      return after;
    });
  const clear = (): void => {
    setSelected(new Map());
    setCut(false);
  };
  const selectMatching = async (): Promise<void> => {
    try {
      const found = await readMatching(filters);
      setSelected(new Map(found.jobs.map((job) => [job.id, job])));
      setCut(found.isCut);
    } catch (error) {
      say({ words: wordsOf(error), tone: "bad" });
    }
  };
  const act = (verb: "retry" | "cancel"): void => {
    const chosen = selected.size ? [...selected.values()].map((job) => jobs?.find((one) => one.id === job.id) ?? job) : focus >= 0 && jobs?.[focus] ? [jobs[focus]] : [];
    if (chosen.length && may("operator")) bulk(verb, chosen, isCut, bulkCommand(verb, chosen, filters, isCut), () => (clear(), void read()));
  };

  // At once, so that the key after this one already knows which row has the focus.
  useLayoutEffect(() => {
    const move = (step: number): void => {
      const place = Math.max(0, Math.min((jobs?.length ?? 0) - 1, focus + step));
      setFocus(place);
      frame.current?.querySelectorAll<HTMLElement>("tbody tr")[place]?.querySelector<HTMLElement>("a")?.focus();
    };
    return bindKeys({
      j: () => move(1),
      k: () => move(-1),
      Enter: () => jobs?.[focus] && go(href(["jobs", jobs[focus].id])),
      x: () => jobs?.[focus] && toggle(jobs[focus]),
      a: () => void selectMatching(),
      R: () => act("retry"),
      C: () => act("cancel"),
      Escape: () => (selected.size ? clear() : (document.activeElement as HTMLElement | null)?.blur()),
    });
  });

  const allOnPage = jobs !== null && jobs.length > 0 && jobs.every((job) => selected.has(job.id));
  const showsTenant = seesAll.value && jobs !== null && new Set(jobs.map((job) => job.tenant)).size > 1;
  const canAct = may("operator");
  const header = useMemo(() => ["State", "Job", "What it does", "Queue", ...(showsTenant ? ["Tenant"] : []), "Attempt", "Handed in", "Took"], [showsTenant]);

  if (problem !== null && jobs === null) return <Problem words={problem} again={() => void read()} />;
  if (jobs === null) return <Loading what="jobs" />;
  if (jobs.length === 0 && cursor === undefined) return <NoJobs filters={filters} />;
  return (
    <div ref={frame} class="list" onPointerEnter={() => (isTouched.current = true)} onPointerLeave={() => (isTouched.current = false)}>
      <Problem words={problem} again={() => void read()} />
      <div class="fresh-frame" aria-live="polite">
        {fresh.size > 0 && (
          <button type="button" class="fresh" onClick={() => void read()}>
            {count(fresh.size)} new — show
          </button>
        )}
      </div>
      {cursor !== undefined && <p class="quiet">Older jobs. New ones are on the first page.</p>}
      {liveState.value === "paused" && <p class="quiet">Paused: nothing changes here.</p>}
      {selected.size > 0 && (
        <div class="selection" role="region" aria-label="Selection">
          <strong>{counted(selected.size, "job")} selected</strong>
          {allOnPage && next !== null && !isCut && selected.size <= jobs.length && (
            <button type="button" class="ghost" onClick={() => void selectMatching()}>
              Select all that match
            </button>
          )}
          {isCut && <span class="faint">the newest {count(selected.size)}; there are more</span>}
          <button type="button" onClick={() => act("retry")}>
            Retry
          </button>
          <button type="button" class="grave" onClick={() => act("cancel")}>
            Cancel
          </button>
          <button type="button" class="ghost" onClick={clear}>
            Clear
          </button>
        </div>
      )}
      <Table
        label="Jobs"
        columns={[
          ...(canAct
            ? [
                <label class="tick">
                  <input
                    type="checkbox"
                    aria-label="Select all on this page"
                    checked={allOnPage}
                    onChange={() => setSelected(allOnPage ? new Map() : new Map(jobs.map((job) => [job.id, job])))}
                  />
                </label>,
              ]
            : []),
          ...header,
        ]}
      >
        {jobs.map((job, place) => (
          <tr key={job.id} class={`${selected.has(job.id) ? "selected" : ""} ${place === focus ? "current" : ""}`} onFocusCapture={() => setFocus(place)}>
            {canAct && (
              <td class="cell-tick">
                <label class="tick">
                  <input type="checkbox" aria-label={`Select job ${job.id}`} checked={selected.has(job.id)} onChange={() => toggle(job)} />
                </label>
              </td>
            )}
            <td data-label="State">
              <Badge state={job.status} />
            </td>
            <td data-label="Job" class="cell-main">
              <JobLink id={job.id}>
                <strong>
                  <Text of={job.type} most={60} />
                </strong>
              </JobLink>
              <div class="small-text faint">
                {job.schedule ? <ScheduleLink name={job.schedule} /> : job.key ? <Text of={job.key} most={50} /> : <code>{job.id.slice(-8)}</code>}
              </div>
            </td>
            <td data-label="What it does" class="cell-words">
              {job.status === "RUNNING" ? <Progress job={job} /> : <Text of={job.why} most={140} />}
            </td>
            <td data-label="Queue">
              <Text of={job.queue} most={30} />
            </td>
            {showsTenant && (
              <td data-label="Tenant">
                <Text of={job.tenant} most={30} />
              </td>
            )}
            <td data-label="Attempt" class="figure">
              {job.attempts > job.max_attempts ? job.attempts : `${job.attempts}/${job.max_attempts}`}
            </td>
            <td data-label="Handed in" class="figure">
              <Time at={job.created_at} />
            </td>
            <td data-label="Took" class="figure">
              {isFinal(job.status) ? job.started_at && job.finished_at ? duration(instant(job.finished_at) - instant(job.started_at)) : "–" : job.status === "RUNNING" ? <Since at={job.started_at} /> : "–"}
            </td>
          </tr>
        ))}
      </Table>
      <Pager isFirst={cursor === undefined} next={next} onFirst={() => go(href(["jobs"], filters))} onNext={(place) => go(href(["jobs"], { ...filters, cursor: place }))} />
    </div>
  );
}

/** Read what matches, page by page, up to what is taken at once. */
async function readMatching(filters: Filters): Promise<{ jobs: Job[]; isCut: boolean }> {
  const jobs: Job[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < MATCHING_PAGES; page++) {
    const found: Page<Job> = await ask<Page<Job>>(apiUrl(["jobs"], { ...queryOf(filters), limit: 200, cursor }));
    jobs.push(...found.items);
    if (found.next_cursor === null) return { jobs, isCut: false };
    cursor = found.next_cursor;
  }
  return { jobs, isCut: true };
}

function bulkCommand(verb: string, jobs: readonly Job[], filters: Filters, isCut: boolean): string {
  if (jobs.length === 1 && jobs[0]) return command(["jobs", verb, jobs[0].id]);
  if (!isCut && jobs.length <= 10) return `for id in ${jobs.map((job) => shellWord(job.id)).join(" ")}; do ${command(["jobs", verb, "$id"]).replace("'$id'", '"$id"')}; done`;
  const list = command(["jobs", "list", "--json"], { status: filters.status, task: filters.type, queue: filters.queue, tenant: filters.tenant, schedule: filters.schedule, limit: String(jobs.length) });
  return `${list} | jq -r '.[].id' | xargs -n1 ${command(["jobs", verb])}`;
}

function NoJobs({ filters }: { filters: Filters }) {
  if (Object.keys(filters).length > 0) {
    return (
      <Empty title="No job matches">
        <p>
          The filters leave nothing. <a href="#/jobs">Clear them</a> to see all jobs.
        </p>
      </Empty>
    );
  }
  return (
    <Empty title="No jobs yet">
      <p>Enqueue one from a terminal, or over HTTP:</p>
      <Command line={command(["enqueue", "hello", "--watch"])} />
      <Command line={`curl -X POST ${new URL("api/jobs", document.baseURI).href} -H 'Content-Type: application/json' -d '{"type": "hello"}'`} />
    </Empty>
  );
}
