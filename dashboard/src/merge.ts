/** Merge job events into known jobs: never older versions, and rows keep their places. */
import type { Filters } from "./filters.ts";
import type { JobNews } from "./models.ts";

/** Return whether an event is newer than the known job; a running job sends several events per version. */
export function isNewer(news: { version: number; live?: number }, known: { version: number; live?: number }): boolean {
  if (news.version !== known.version) return news.version > known.version;
  return (news.live ?? 0) > (known.live ?? 0);
}

/** Merge an event into a job; null if it is not newer. */
export function merged<Known extends JobNews>(known: Known, news: JobNews): Known | null {
  if (known.id !== news.id || !isNewer(news, known)) return null;
  const { live, omitted, ...rest } = news;
  const after: Known = { ...known, ...rest };
  if (omitted?.includes("metadata")) after.metadata = { ...known.metadata, ...news.metadata }; // Too large for an event.
  if (live === undefined) delete after.live;
  else after.live = live;
  return after;
}

/** Merge events into a list: rows keep their order. Returns the same list if nothing changed. */
export function mergedList<Known extends JobNews>(list: readonly Known[], news: readonly JobNews[]): readonly Known[] {
  const byId = new Map<string, JobNews>();
  for (const one of news) {
    const before = byId.get(one.id);
    if (before === undefined || isNewer(one, before)) byId.set(one.id, one);
  }
  let hasChanged = false;
  const after = list.map((known) => {
    const told = byId.get(known.id);
    const next = told && merged(known, told);
    if (!next) return known;
    hasChanged = true;
    return next;
  });
  return hasChanged ? after : list;
}

/** Return whether a new job belongs into a list with these filters; false if the event lacks the field. */
export function matches(job: JobNews, wanted: Filters): boolean {
  const text = wanted.q?.toLowerCase();
  return (
    !(wanted.until || wanted.batch || wanted.rerun_of) &&
    (!wanted.ended || job.finished_at !== null) &&
    (!text || [job.id, job.type, job.key, job.schedule].some((part) => part?.toLowerCase().includes(text))) &&
    (!wanted.status || job.status === wanted.status) &&
    (!wanted.type || job.type === wanted.type) &&
    (!wanted.queue || job.queue === wanted.queue) &&
    (!wanted.tenant || job.tenant === wanted.tenant) &&
    (!wanted.schedule || job.schedule === wanted.schedule) &&
    (!wanted.tag || job.tags.includes(wanted.tag)) &&
    (!wanted.key || job.key === wanted.key)
  );
}
