/** Jobs: a list with filters and selection. Rows update in place; new ones are shown on request. */
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { bulk } from "../actions.tsx";
import { apiUrl, ask, wordsOf } from "../api.ts";
import { command } from "../cli.ts";
import { filtersOf, queryOf, readWords, type Filters } from "../filters.ts";
import { count, counted, duration, instant, tries } from "../format.ts";
import { useCalm, useNews, useTitle } from "../hooks.ts";
import { bindKeys } from "../keys.ts";
import { liveState, onReadAgain } from "../live.ts";
import { matches, mergedList } from "../merge.ts";
import { go, href, route } from "../router.ts";
import { may, seesAll, serverNow, stats } from "../state.ts";
import { isFinal, lookOf } from "../statuses.ts";
import { say } from "../toasts.tsx";
import { STATUSES, type Page } from "../models.ts";
import type { Job, JobCount } from "../types.ts";
import { Badge, Command, Empty, JobLink, Loading, Pager, Problem, Progress, ScheduleLink, Select, Since, Table, Text, Time } from "../ui.tsx";

const PAGE = 50;
const SINCES: readonly (readonly [string, string])[] = [
  ["", "any time"],
  ["15m", "last 15 minutes"],
  ["1h", "last hour"],
  ["24h", "last 24 hours"],
  ["7d", "last 7 days"],
];

const MORE = ["queue", "tenant", "tag", "key", "batch", "rerun_of", "until", "ended"] as const;

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
  const [showsMore, setShowsMore] = useState(MORE.some((name) => filters[name]));
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
  const times = (label: string, name: "since" | "ended") => {
    const chosen = filters[name] ?? "";
    const isOwn = !SINCES.some(([value]) => value === chosen);
    return <Select label={label} value={chosen} onValue={(value) => change({ [name]: value })} options={isOwn ? [...SINCES, [chosen, `since ${chosen}`]] : SINCES} />;
  };
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
      {times("Enqueued", "since")}
      {showsMore && (
        <>
          {field("Queue", "queue")}
          {field("Tag", "tag")}
          {field("Key", "key")}
          {seesAll.value && field("Tenant", "tenant")}
          {field("Enqueued before", "until")}
          {times("Ended", "ended")}
          {filters.batch && field("Batch", "batch")}
          {filters.rerun_of && field("Rerun of", "rerun_of")}
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
  // All that match, including those not loaded yet; the number is informative, the server counts again.
  const [matching, setMatching] = useState<JobCount | null>(null);
  const [focus, setFocus] = useState(-1);
  const frame = useRef<HTMLDivElement>(null);
  const isTouched = useRef(false);
  const reading = useRef<AbortController | null>(null);

  const read = useCallback(async () => {
    reading.current?.abort();
    const mine = new AbortController();
    reading.current = mine;
    try {
      const found = await ask<Page<Job>>(apiUrl(["jobs"], { ...queryOf(filters, serverNow()), limit: PAGE, cursor }), { signal: mine.signal });
      setJobs(found.items);
      setNext(found.next_cursor);
      setFresh(new Set());
      setProblem(null);
    } catch (error) {
      if (!mine.signal.aborted) setProblem(wordsOf(error));
    }
  }, []);
  useLayoutEffect(() => {
    void read();
    const leave = onReadAgain(() => void read());
    return () => {
      leave();
      reading.current?.abort();
    };
  }, []);

  // A row that is hovered, focused or selected must not move: then new jobs are counted, not shown.
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

  const toggle = (job: Job): void => {
    setMatching(null);
    setSelected((before) => {
      const after = new Map(before);
      if (!after.delete(job.id)) after.set(job.id, job);
      return after;
    });
  };
  const clear = (): void => {
    setSelected(new Map());
    setMatching(null);
  };
  const selectMatching = async (): Promise<void> => {
    if (!Object.keys(filters).length) return void say({ words: "Set a filter first, so that it is clear which jobs are selected.", tone: "warn" });
    try {
      setMatching(await ask<JobCount>(apiUrl(["jobs", "count"], queryOf(filters, serverNow()))));
      setSelected(new Map(jobs?.map((job) => [job.id, job])));
    } catch (error) {
      say({ words: wordsOf(error), tone: "bad" });
    }
  };
  const act = (verb: "retry" | "cancel"): void => {
    const chosen = selected.size ? [...selected.values()].map((job) => jobs?.find((one) => one.id === job.id) ?? job) : focus >= 0 && jobs?.[focus] ? [jobs[focus]] : [];
    if (!may("operator") || !(matching || chosen.length)) return;
    void bulk(verb, matching ? { filter: queryOf(filters, serverNow()) } : { jobs: chosen }, () => (clear(), void read()));
  };

  // Synchronously, so that the next key already acts on the focused row.
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
          <strong>{matching ? `All ${matching.is_exact ? "" : "more than "}${counted(matching.count, "job")} that match selected` : `${counted(selected.size, "job")} selected`}</strong>
          {allOnPage && matching === null && (next !== null || cursor !== undefined) && (
            <button type="button" class="ghost" onClick={() => void selectMatching()}>
              Select all that match
            </button>
          )}
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
          canAct && [
            <label class="tick">
              <input
                type="checkbox"
                aria-label="Select all on this page"
                checked={allOnPage}
                onChange={() => (setMatching(null), setSelected(allOnPage ? new Map() : new Map(jobs.map((job) => [job.id, job]))))}
              />
            </label>,
            "cell-tick",
          ],
          ["State"],
          ["Job", "cell-main"],
          ["Activity", "cell-words"],
          ["Queue"],
          showsTenant && ["Tenant"],
          ["Attempt", "figure"],
          ["Enqueued", "figure"],
          ["Took", "figure"],
        ]}
        lines={jobs.map((job, place) => ({
          key: job.id,
          class: `${selected.has(job.id) ? "selected" : ""} ${place === focus ? "current" : ""}`,
          onFocusCapture: () => setFocus(place),
          cells: [
            <label class="tick">
              <input type="checkbox" aria-label={`Select job ${job.id}`} checked={selected.has(job.id)} onChange={() => toggle(job)} />
            </label>,
            <Badge state={job.status} />,
            <>
              <JobLink id={job.id}>
                <strong>
                  <Text of={job.type} most={60} />
                </strong>
              </JobLink>
              <div class="small-text faint">{job.schedule ? <ScheduleLink name={job.schedule} tenant={job.tenant} /> : job.key ? <Text of={job.key} most={50} /> : <code>{job.id.slice(-8)}</code>}</div>
            </>,
            job.status === "RUNNING" ? <Progress job={job} /> : <Text of={job.why} most={140} />,
            <Text of={job.queue} most={30} />,
            <Text of={job.tenant} most={30} />,
            tries(job),
            <Time at={job.created_at} />,
            job.status === "RUNNING" ? <Since at={job.started_at} /> : isFinal(job.status) && job.started_at ? duration(instant(job.finished_at) - instant(job.started_at)) : "–",
          ],
        }))}
      />
      <Pager isFirst={cursor === undefined} next={next} above={href(["jobs"], filters)} onNext={(place) => go(href(["jobs"], { ...filters, cursor: place }))} />
    </div>
  );
}

function NoJobs({ filters }: { filters: Filters }) {
  if (Object.keys(filters).length > 0) {
    return (
      <Empty title="No job matches">
        <p>
          <a href="#/jobs">Clear the filters</a> to see all jobs.
        </p>
      </Empty>
    );
  }
  return (
    <Empty title="No jobs yet">
      <p>Enqueue one from a terminal, or over HTTP:</p>
      <Command line={command(["enqueue", "hello"], { watch: true })} />
      <Command line={`curl -X POST ${new URL("api/jobs", document.baseURI).href} -H 'Content-Type: application/json' -d '{"type": "hello"}'`} />
    </Empty>
  );
}
