/** Tenants: what they have used against their weights, and how long their jobs wait against what they should. */
import { useRef, useState } from "preact/hooks";
import { define } from "../actions.tsx";
import { apiUrl } from "../api.ts";
import { command } from "../cli.ts";
import { Field, FormDialog } from "../dialog.tsx";
import { clip, count, counted, duration, instant, percent, SECOND, span } from "../format.ts";
import { useBackKey, useFresh, useRowKeys, useTitle } from "../hooks.ts";
import { go, href, route } from "../router.ts";
import { may, now, seesAll, stats } from "../state.ts";
import { say } from "../toasts.tsx";
import type { Page } from "../models.ts";
import type { Tenant, TenantDetails } from "../types.ts";
import { Badge, Card, Collection, Command, DO, Empty, Facts, Gauge, Loading, NextPage, Problem, TenantLink, Text } from "../ui.tsx";

const PAGE = 50;
const READY_MAX = 500;

const canChange = (): boolean => may("operator") && seesAll.value;

export function TenantsPage() {
  useTitle("Tenants");
  useRowKeys();
  const { query } = route.value;
  const after = query["cursor"];
  const read = useFresh<Page<Tenant>>(apiUrl(["tenants"], { limit: PAGE, cursor: after }));
  const [changed, setChanged] = useState<Tenant | null>(null);
  const [wanted, setWanted] = useState("");
  const canAct = canChange();
  if (read.data === null) return read.problem === null ? <Loading what="tenants" /> : <Problem words={read.problem} again={read.again} />;
  const close = (): void => {
    setChanged(null);
    if (query["new"]) go("#/tenants", true);
  };
  return (
    <>
      <header class="page-head">
        <h1>Tenants</h1>
        {canAct && (
          <div class="actions">
            <a class="button main" href="#/tenants?new=1">
              Set a tenant
            </a>
          </div>
        )}
      </header>
      {seesAll.value && (
        <form
          class="filters"
          role="search"
          onSubmit={(event) => {
            event.preventDefault();
            if (wanted.trim()) go(href(["tenants", wanted.trim()]));
          }}
        >
          <label class="grow">
            Open a tenant
            <input data-filter type="search" value={wanted} placeholder="its name, then Enter" onInput={(event) => setWanted(event.currentTarget.value)} spellcheck={false} />
          </label>
        </form>
      )}
      <Problem words={read.problem} again={read.again} />
      <LateTenants />
      <Collection
        id="tenants"
        title="How they share queues"
        columns={[["Tenant", "cell-main"], ["Weight", "figure"], ["Used"], ["Ready", "figure"], ["Oldest wait"], ["Set by"], canAct && DO]}
        items={read.data.items}
        empty={<NoTenants />}
        row={(tenant) => ({
          key: tenant.name,
          cells: [
            <strong>
              <TenantLink name={tenant.name} />
            </strong>,
            count(tenant.weight),
            <Used of={tenant.name} seconds={tenant.used_seconds} part={tenant.used_part} />,
            <Ready tenant={tenant} />,
            <Wait tenant={tenant} />,
            tenant.author === null ? <span class="faint">nobody</span> : <Text of={tenant.author} most={60} />,
            <button type="button" class="small" onClick={() => setChanged(tenant)} aria-label={`Change the tenant ${clip(tenant.name, 40)}`}>
              Change
            </button>,
          ],
        })}
      >
        <NextPage path="tenants" next={read.data.next_cursor} after={after} />
      </Collection>
      {canAct && (changed !== null || query["new"]) && <TenantForm tenant={changed} onClose={close} onDone={read.again} />}
    </>
  );
}

/** The tenants that wait longer than they should, whatever page they are on. */
function LateTenants() {
  const late = stats.value?.tenants;
  if (!late?.total) return null;
  const more = late.total - late.items.length;
  return (
    <Card id="late" title="Waiting too long" aside={<span class="faint">{counted(late.total, "tenant")}</span>}>
      <ul class="lines">
        {late.items.map((one) => (
          <li key={one.name}>
            <TenantLink name={one.name} />
            <span>
              <Badge state="late" word={duration(Math.round(one.waited_seconds) * SECOND)} /> of {one.wait_slo} allowed
            </span>
          </li>
        ))}
        {more > 0 && <li class="faint">and {count(more)} more</li>}
      </ul>
    </Card>
  );
}

function Used({ of, seconds, part }: { of: string; seconds: number; part: number | undefined }) {
  const words = duration(Math.round(seconds * SECOND));
  if (part === undefined) return <>{words}</>;
  return (
    <Gauge label={`What ${clip(of, 40)} has used`} value={part} most={1}>
      {words} <span class="faint">{percent(part)}</span>
    </Gauge>
  );
}

function Ready({ tenant }: { tenant: Tenant }) {
  if (!tenant.ready) return <span class="faint">none</span>;
  return (
    <a href={href(["jobs"], { tenant: seesAll.value ? tenant.name : undefined, status: "PENDING" })}>
      {count(tenant.ready)}
      {tenant.ready >= READY_MAX && " or more"}
    </a>
  );
}

/** How long the oldest ready job has waited, against what is allowed. */
function Wait({ tenant }: { tenant: Tenant }) {
  const waited = tenant.oldest_ready_at ? Math.max(0, Math.floor((now.value - instant(tenant.oldest_ready_at)) / SECOND) * SECOND) : 0;
  const words = tenant.oldest_ready_at ? duration(waited) : "none";
  if (tenant.wait_slo === null) return <span class="faint">{words}</span>;
  const most = span(tenant.wait_slo);
  return (
    <Gauge label={`Wait of ${clip(tenant.name, 40)}, in seconds`} value={waited / SECOND} most={most / SECOND}>
      {waited > most ? <Badge state="late" word={words} /> : words} <span class="faint">of {tenant.wait_slo}</span>
    </Gauge>
  );
}

export function TenantPage({ name }: { name: string }) {
  useTitle(`Tenant ${name}`);
  useBackKey("#/tenants");
  const read = useFresh<TenantDetails>(apiUrl(["tenants", name]));
  const [isChanging, setChanging] = useState(false);
  const tenant = read.data;
  if (tenant === null) return read.problem === null ? <Loading what="the tenant" /> : <Problem words={read.problem} again={read.again} />;
  return (
    <article>
      <nav class="crumbs" aria-label="Breadcrumbs">
        <a href="#/tenants">Tenants</a>
      </nav>
      <header class="page-head">
        <h1>
          <Text of={tenant.name} most={80} />
        </h1>
        {canChange() && (
          <div class="actions">
            <button type="button" onClick={() => setChanging(true)}>
              Change
            </button>
          </div>
        )}
      </header>
      <Problem words={read.problem} again={read.again} />
      <div class="columns">
        <Collection
          id="shares"
          title="What it has used"
          columns={[["Queue", "cell-main"], ["Used"], seesAll.value && ["By weight", "figure"]]}
          items={tenant.queues}
          empty={
            <Empty title="It has not shared a queue yet">
              <p>The seconds that its jobs take are counted by queue, and the tenant that has used least is served next.</p>
            </Empty>
          }
          row={(share) => ({
            key: share.queue,
            cells: [
              <a href={href(["jobs"], { queue: share.queue, tenant: seesAll.value ? tenant.name : undefined })}>
                <Text of={share.queue} most={60} />
              </a>,
              <Used of={`${tenant.name} of ${share.queue}`} seconds={share.used_seconds} part={share.used_part} />,
              share.fair_part === undefined ? null : percent(share.fair_part),
            ],
          })}
        />
        <Card id="about" title="About">
          <Facts
            rows={[
              ["Weight", count(tenant.weight)],
              ["Should wait", tenant.wait_slo === null ? "no objective" : `${tenant.wait_slo} at most`],
              ["Waits now", <Wait tenant={tenant} />],
              ["Ready jobs", <Ready tenant={tenant} />],
              ["Waited lately", <Waited tenant={tenant} />],
              ["Set by", tenant.author === null ? "nobody: the weight is 1" : <Text of={tenant.author} most={60} />],
            ]}
          />
          <Command line={command(["tenants", "show", tenant.name])} />
        </Card>
      </div>
      {isChanging && <TenantForm tenant={tenant} onClose={() => setChanging(false)} onDone={read.again} />}
    </article>
  );
}

function Waited({ tenant }: { tenant: TenantDetails }) {
  const { wait_p50_seconds: half, wait_p95_seconds: most } = tenant;
  if (half === null || most === null) return <span class="faint">no job has started lately</span>;
  return (
    <>
      p50 {duration(half * SECOND)}, p95 {duration(most * SECOND)} {tenant.meets_slo === null ? null : <Badge state={tenant.meets_slo ? "on" : "late"} word={tenant.meets_slo ? "Within objective" : "Too long"} />}
      <div class="small-text faint">the newest {counted(tenant.waits, "started job")}</div>
    </>
  );
}

function NoTenants() {
  return (
    <Empty title="No tenants yet">
      <p>Jobs of several tenants share a queue by the seconds that they take, without any configuration. Name the tenant of a job:</p>
      <Command line={command(["enqueue", "report"], { tenant: "acme" })} />
      <p>A tenant with weight 4 gets four times as much as one with weight 1:</p>
      <pre class="sample">{`app.tenant("acme", weight=4, wait_slo="5s")`}</pre>
    </Empty>
  );
}

function settings(tenant: Tenant | null): string {
  return `has the weight ${tenant?.weight ?? 1}${tenant?.wait_slo ? ` and should wait at most ${tenant.wait_slo}` : ""}`;
}

function TenantForm({ tenant, onClose, onDone }: { tenant: Tenant | null; onClose: () => void; onDone: () => void }) {
  const shown = useRef(tenant);
  const [name, setName] = useState(tenant?.name ?? "");
  const [weight, setWeight] = useState(String(tenant?.weight ?? 1));
  const [slo, setSlo] = useState(tenant?.wait_slo ?? "");
  const line = command(["tenants", "set", name.trim()], { weight: weight.trim(), "wait-slo": slo.trim() || "0s" });
  return (
    <FormDialog
      title={tenant === null ? "Set a tenant" : `Change the tenant ${tenant.name}`}
      onClose={onClose}
      verb="Set it"
      command={name.trim() ? line : undefined}
      isReady={name.trim() !== ""}
      act={async () => {
        const number = /^\d{1,15}$/.test(weight.trim()) ? Number(weight) : weight.trim();
        const put = await define<Tenant>(["tenants", name.trim()], { weight: number, wait_slo: slo.trim() || "0s" }, shown, settings);
        say({ words: `${put.name} ${settings(put)}.`, command: line });
        onDone();
        onClose();
      }}
    >
      {tenant === null && <Field label="Tenant" maxLength={200} value={name} onValue={setName} />}
      <Field label="Weight: twice the weight is twice the time" inputMode="numeric" maxLength={20} value={weight} onValue={setWeight} />
      <Field label="How long its jobs should wait at most; empty: no matter" placeholder="5s" maxLength={40} value={slo} onValue={setSlo} />
    </FormDialog>
  );
}
