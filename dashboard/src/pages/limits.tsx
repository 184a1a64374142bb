/** Limits: how many jobs run of those allowed, what a rate allows next, who holds places, and how much waits. */
import { useRef, useState } from "preact/hooks";
import { define, removeLimit } from "../actions.tsx";
import { apiUrl } from "../api.ts";
import { command } from "../cli.ts";
import { Field, FormDialog } from "../dialog.tsx";
import { clip, count, counted } from "../format.ts";
import { useBackKey, useFresh, useRowKeys, useTitle } from "../hooks.ts";
import { go, href, route } from "../router.ts";
import { may, seesAll } from "../state.ts";
import { say } from "../toasts.tsx";
import type { Page } from "../models.ts";
import type { Limit, LimitDetails } from "../types.ts";
import { Badge, Card, Collection, Command, DO, Empty, Facts, Gauge, JobLink, LimitLink, Loading, NextPage, Problem, Since, TenantLink, Text, Time } from "../ui.tsx";

const PAGE = 50;
const LANES_MAX = 1_000;

const canChange = (): boolean => may("operator") && seesAll.value;

export function LimitsPage() {
  useTitle("Limits");
  useRowKeys();
  const { query } = route.value;
  const after = query["cursor"];
  const read = useFresh<Page<Limit>>(apiUrl(["limits"], { limit: PAGE, cursor: after }));
  const [changed, setChanged] = useState<Limit | null>(null);
  const canAct = canChange();
  if (read.data === null) return read.problem === null ? <Loading what="limits" /> : <Problem words={read.problem} again={read.again} />;
  const close = (): void => {
    setChanged(null);
    if (query["new"]) go("#/limits", true);
  };
  return (
    <>
      <header class="page-head">
        <h1>Limits</h1>
        {canAct && (
          <div class="actions">
            <a class="button main" href="#/limits?new=1">
              New limit
            </a>
          </div>
        )}
      </header>
      <Problem words={read.problem} again={read.again} />
      <Collection
        id="limits"
        title="What may run at a time, and start in a period"
        columns={[["Limit", "cell-main"], ["Running"], ["Rate", "figure"], ["Waiting", "figure"], ["Declared by"], canAct && DO]}
        items={read.data.items}
        empty={<NoLimits />}
        row={(limit) => ({
          key: limit.name,
          cells: [
            <strong>
              <LimitLink name={limit.name} />
            </strong>,
            <Used limit={limit} />,
            <Rate limit={limit} />,
            <Lanes limit={limit} />,
            limit.owner ? <Text of={limit.owner} most={60} /> : <span class="faint">operators</span>,
            <Buttons limit={limit} onChange={() => setChanged(limit)} after={read.again} />,
          ],
        })}
      >
        <NextPage path="limits" next={read.data.next_cursor} after={after} />
      </Collection>
      {canAct && (changed !== null || query["new"]) && <LimitForm limit={changed} onClose={close} onDone={read.again} />}
    </>
  );
}

function Buttons({ limit, onChange, after }: { limit: Limit; onChange: () => void; after: () => void }) {
  const name = clip(limit.name, 40);
  return (
    <>
      <button type="button" class="small" onClick={onChange} aria-label={`Change the limit ${name}`}>
        Change
      </button>
      <button type="button" class="small ghost" onClick={() => removeLimit(limit, after)} aria-label={`Remove the limit ${name}`}>
        Remove
      </button>
    </>
  );
}

/** How many run of those allowed; a name with a star limits each name on its own. */
function Used({ limit }: { limit: Limit }) {
  const { concurrency, running } = limit;
  if (!limit.in_force) return <Badge state="draining" word="Not in force yet" />;
  if (limit.name.endsWith("*")) return <span class="faint">{concurrency === null ? "–" : `${count(concurrency)} for each name`}</span>;
  if (concurrency === null) return <>{count(running ?? 0)}</>;
  return (
    <Gauge label={`Running jobs under ${clip(limit.name, 40)}`} value={running ?? 0} most={concurrency}>
      {count(running ?? 0)} of {count(concurrency)}
    </Gauge>
  );
}

function Rate({ limit }: { limit: Limit }) {
  if (limit.rate === null) return <span class="faint">–</span>;
  return (
    <>
      {limit.rate}
      {limit.burst !== null && `, bursts of ${count(limit.burst)}`}
      {limit.next_at && (
        <div class="small-text faint">
          next <Time at={limit.next_at} ahead />
        </div>
      )}
    </>
  );
}

function Lanes({ limit }: { limit: Limit }) {
  if (limit.held === undefined) return <span class="faint">–</span>;
  return limit.held ? <Badge state="WAITING" word={lanes(limit.held)} /> : <span class="faint">none</span>;
}

function lanes(held: number): string {
  return held < LANES_MAX ? counted(held, "lane") : `${count(LANES_MAX)} lanes or more`;
}

function allows(limit: Limit | null): string {
  if (limit === null) return "does not exist";
  const parts = [limit.concurrency !== null && `${count(limit.concurrency)} at a time`, limit.rate !== null && `${limit.rate}${limit.burst === null ? "" : `, bursts of ${count(limit.burst)}`}`];
  return `allows ${parts.filter(Boolean).join(" and ")}`;
}

export function LimitPage({ name }: { name: string }) {
  useTitle(`Limit ${name}`);
  useBackKey("#/limits");
  const read = useFresh<LimitDetails>(apiUrl(["limits", name]));
  const [isChanging, setChanging] = useState(false);
  const limit = read.data;
  if (limit === null || read.status === 404) {
    if (read.status === 404) return <NoSuchLimit words={read.problem ?? ""} />;
    return read.problem === null ? <Loading what="the limit" /> : <Problem words={read.problem} again={read.again} />;
  }
  const isPattern = limit.name.endsWith("*");
  return (
    <article>
      <nav class="crumbs" aria-label="Breadcrumbs">
        <a href="#/limits">Limits</a>
      </nav>
      <header class="page-head">
        <h1>
          <Text of={limit.name} most={80} /> {limit.held ? <Badge state="WAITING" word={`${lanes(limit.held)} waiting`} /> : null}
        </h1>
        {canChange() && (
          <div class="actions">
            <Buttons limit={limit} onChange={() => setChanging(true)} after={() => go("#/limits")} />
          </div>
        )}
      </header>
      <Problem words={read.problem} again={read.again} />
      <div class="columns">
        <Collection
          id="holders"
          title="Jobs that hold its places"
          aside={<span class="faint">those that run longest first, up to 20</span>}
          columns={[["Job", "cell-main"], ["Task"], ["Tenant"], isPattern && ["Under"], ["Running for", "figure"]]}
          items={limit.holders}
          empty={<Empty title="No job holds a place">{limit.held ? <p>What waits for it starts as soon as a worker has room.</p> : null}</Empty>}
          row={(holder) => ({
            key: holder.id,
            cells: [<JobLink id={holder.id} />, <Text of={holder.task} most={60} />, <TenantLink name={holder.tenant} />, <Text of={holder.gate} most={60} />, <Since at={holder.since} />],
          })}
        />
        <Card id="about" title="About">
          <Facts
            rows={[
              ["Running", <Used limit={limit} />],
              ["Rate", <Rate limit={limit} />],
              ["Waiting", <Lanes limit={limit} />],
              ["Limits", whatOf(limit.name)],
              ["Declared by", limit.owner ? <Text of={limit.owner} most={60} /> : "operators"],
            ]}
          />
          <p class="hint faint">Jobs with the same queue, tenant and limits are a lane: if the first of them may not start, none may.</p>
          <Command line={command(["limits", "show", limit.name])} />
        </Card>
      </div>
      {isChanging && <LimitForm limit={limit} onClose={() => setChanging(false)} onDone={read.again} />}
    </article>
  );
}

/** Say what a limit counts, from its name. */
function whatOf(name: string) {
  const [, kind, value = ""] = /^(?:(queue|task|tenant):)?(.*)$/s.exec(name) ?? [];
  const whose = value.endsWith("*") ? `each ${kind ?? "name"} that begins like it` : "";
  if (kind === undefined) return whose ? `the jobs of ${whose}` : "the jobs that name it";
  const filter = kind === "task" ? "type" : kind;
  return whose ? `the jobs of ${whose}` : <a href={href(["jobs"], { [filter]: value })}>the jobs of the {kind} <Text of={value} most={60} /></a>;
}

function NoSuchLimit({ words }: { words: string }) {
  return (
    <Empty title="Limit not found">
      <p>
        <Text of={words} />
      </p>
      <p>
        <a href="#/limits">All limits</a>
      </p>
    </Empty>
  );
}

function NoLimits() {
  if (!seesAll.value) {
    return (
      <Empty title="No limit concerns your jobs">
        <p>A limit is listed here while a job of your tenant runs under it or waits for it.</p>
      </Empty>
    );
  }
  return (
    <Empty title="No limits yet">
      <p>A limit says how many jobs run at a time, and how many start in a period. Declare it in an app:</p>
      <pre class="sample">{`app.limit("queue:media", concurrency=40)
app.limit("account-*", concurrency=1, rate="10/s")`}</pre>
      <p>Or put one now, here with “New limit” or in a terminal:</p>
      <Command line={command(["limits", "put", "queue:media"], { concurrency: "40" })} />
    </Empty>
  );
}

/** A whole number as one, anything else as it was typed: the server says what is wrong with it. */
function typed(text: string): number | string | undefined {
  const trimmed = text.trim();
  return /^\d{1,15}$/.test(trimmed) ? Number(trimmed) : trimmed || undefined;
}

function LimitForm({ limit, onClose, onDone }: { limit: Limit | null; onClose: () => void; onDone: () => void }) {
  const shown = useRef(limit);
  const [name, setName] = useState(limit?.name ?? "");
  const [concurrency, setConcurrency] = useState(String(limit?.concurrency ?? ""));
  const [rate, setRate] = useState(limit?.rate ?? "");
  const [burst, setBurst] = useState(String(limit?.burst ?? ""));
  const line = command(["limits", "put", name.trim()], { concurrency: concurrency.trim(), rate: rate.trim(), burst: burst.trim() });
  return (
    <FormDialog
      title={limit === null ? "New limit" : `Change the limit ${limit.name}`}
      onClose={onClose}
      verb={limit === null ? "Put it" : "Change it"}
      command={name.trim() ? line : undefined}
      isReady={name.trim() !== ""}
      act={async () => {
        const body = { concurrency: typed(concurrency), rate: rate.trim(), burst: typed(burst) };
        const put = await define<Limit>(["limits", name.trim()], body, shown, allows);
        say({ words: `${put.name} ${allows(put)}.`, command: line });
        onDone();
        onClose();
      }}
    >
      {limit === null && <Field label="Name: queue:…, task:…, tenant:…, or one that jobs give; * ends a prefix" maxLength={200} value={name} onValue={setName} />}
      <Field label="How many may run at a time; empty: any number" inputMode="numeric" maxLength={20} value={concurrency} onValue={setConcurrency} />
      <Field label="How many may start in which time; empty: any number" placeholder="10/s, or 100/5m" maxLength={40} value={rate} onValue={setRate} />
      <Field label="How many may start at once after a rest (a token bucket); empty: no bucket" inputMode="numeric" maxLength={20} value={burst} onValue={setBurst} />
      {limit?.owner ? <p class="hint faint">It is declared by {limit.owner}. Once changed here, it belongs to operators until it is removed.</p> : null}
      <p class="hint faint">It is in force at once. Running jobs are not stopped.</p>
    </FormDialog>
  );
}
