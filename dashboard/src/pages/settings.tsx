/** Settings: the caller and its rights, display, tokens, webhooks, and the audit log. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { removeWebhook, revokeToken, signOut, testWebhook, toggleWebhook } from "../actions.tsx";
import { apiUrl, ask } from "../api.ts";
import { command } from "../cli.ts";
import { Dialog, Field, FormDialog } from "../dialog.tsx";
import { writeExact, type Json } from "../exact.ts";
import { clip, visible } from "../format.ts";
import { useRead, useTitle } from "../hooks.ts";
import { go, href, route } from "../router.ts";
import { announces, may, me, seesAll, shortcuts, theme, type Theme } from "../state.ts";
import type { Page, Role } from "../models.ts";
import type { AuditLogEntry, Token, Webhook } from "../types.ts";
import { Badge, Card, Collection, Command, Copy, DO, Facts, Problem, Select, Text, Time, type Column, type Line } from "../ui.tsx";

const MAY: Readonly<Record<Role, string>> = {
  viewer: "may read and follow; tracebacks are left out",
  operator: "may also enqueue, cancel, retry, pause, trigger and change schedules",
  admin: "may do everything, also with tokens and webhooks",
};
const EVENTS = ["*", "job.completed", "job.failed", "job.timed_out", "job.cancelled"];

export function SettingsPage() {
  useTitle("Settings");
  return (
    <>
      <h1>Settings</h1>
      <div class="columns even">
        <You />
        <Behaviour />
      </div>
      {may("admin") ? (
        <>
          <Tokens />
          <Webhooks />
          <AuditLog />
        </>
      ) : (
        <p class="faint">Tokens, webhooks and the audit log are shown to admins.</p>
      )}
    </>
  );
}

function You() {
  const who = me.value;
  if (who === null) return null;
  return (
    <Card id="you" title="You">
      <Facts
        rows={[
          ["Name", who.token_id ? <Text of={who.name} most={80} /> : "anonymous: no token is required yet"],
          ["Role", `${who.role}: ${MAY[who.role]}`],
          ["Sees", seesAll.value ? "all tenants" : <>the tenant <Text of={who.tenant} most={80} />; other tenants are not visible</>],
          who.token_id ? ["Token", <code>{who.token_id}</code>] : null,
        ]}
      />
      {who.token_id && (
        <button type="button" onClick={() => void signOut()}>
          Sign out
        </button>
      )}
    </Card>
  );
}

function Behaviour() {
  return (
    <Card id="behaviour" title="Display" aside={<span class="faint">stored in this browser only</span>}>
      <div class="stack">
      <Select label="Theme" value={theme.value} onValue={(value) => (theme.value = value as Theme)} options={[["system", "as the system"], ["light"], ["dark"]]} />
      <label class="inline">
        <input type="checkbox" checked={shortcuts.value === "on"} onChange={() => (shortcuts.value = shortcuts.value === "on" ? "off" : "on")} /> single-letter shortcuts
      </label>
      <label class="inline">
        <input type="checkbox" checked={announces.value === "on"} onChange={() => (announces.value = announces.value === "on" ? "off" : "on")} /> announce job progress to screen readers
      </label>
      </div>
    </Card>
  );
}

// --- secrets that are shown once

/** A form that creates something with a secret, and shows the secret once. */
function SecretForm({ title, what, words, verb = "Create", command: line, make, onClose, children }: { title: string; what: string; words: string; verb?: string; command: string; make: () => Promise<string>; onClose: () => void; children: ComponentChildren }) {
  const [secret, setSecret] = useState<string | null>(null);
  if (secret === null) {
    return (
      <FormDialog title={title} onClose={onClose} act={async () => setSecret(await make())} verb={verb} command={line}>
        {children}
      </FormDialog>
    );
  }
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{words}</p>
      <p class="secret">
        <code>{secret}</code> <Copy text={secret} what={what} />
      </p>
      <footer>
        <button type="button" class="main" onClick={onClose}>
          Done
        </button>
      </footer>
    </Dialog>
  );
}

/** A card with a list for admins, and a button to create an item. */
function Kept<Item>({ id, title, word, columns, empty, row, form }: { id: string; title: string; word: string; columns: readonly Column[]; empty: ComponentChildren; row: (item: Item, again: () => void) => Line; form: (onClose: () => void) => ComponentChildren }) {
  const read = useRead<Page<Item>>(apiUrl([id], { limit: 100 }));
  const [isMaking, setMaking] = useState(false);
  return (
    <Collection
      id={id}
      title={title}
      aside={
        <button type="button" class="small" onClick={() => setMaking(true)}>
          New {word}
        </button>
      }
      before={<Problem words={read.problem} again={read.again} />}
      columns={[...columns, DO]}
      items={read.data?.items}
      empty={empty}
      row={(item) => row(item, read.again)}
    >
      {isMaking && form(() => (setMaking(false), read.again()))}
    </Collection>
  );
}

function ofTenant(tenant: string) {
  return tenant === "*" ? "all" : <Text of={tenant} most={60} />;
}

// --- tokens

function Tokens() {
  return (
    <Kept<Token>
      id="tokens"
      title="Tokens"
      word="token"
      columns={[["Name", "cell-main"], ["State"], ["Role"], ["Tenant"], ["Created"], ["Expires"]]}
      empty={
        <div class="quiet">
          <p>No tokens yet: anyone who can reach this address has full access. Creating one turns on sign-in; make it an admin token for all tenants.</p>
          <Command line={command(["tokens", "create", "me"], { role: "admin" })} />
        </div>
      }
      row={(token, again) => ({
        key: token.id,
        cells: [
          <>
            <Text of={token.name} most={80} />
            <div class="small-text faint mono">{token.id}</div>
          </>,
          <Badge state={token.state === "expired" ? "off" : token.state} {...(token.state === "expired" ? { word: "Expired" } : {})} />,
          token.role,
          ofTenant(token.tenant),
          <>
            <Time at={token.created_at} /> by <Text of={token.created_by} most={60} />
          </>,
          token.expires_at ? <Time at={token.expires_at} ahead /> : "never",
          token.state === "valid" && (
            <button type="button" class="small grave" onClick={() => revokeToken(token, again)} aria-label={`Revoke the token of ${clip(token.name, 40)}`}>
              Revoke
            </button>
          ),
        ],
      })}
      form={(onClose) => <NewToken onClose={onClose} />}
    />
  );
}

function NewToken({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("operator");
  const [tenant, setTenant] = useState(seesAll.value ? "*" : (me.value?.tenant ?? ""));
  const [expires, setExpires] = useState("90d");
  const make = async (): Promise<string> => {
    const body: { [name: string]: Json } = { name, role, tenant, ...(expires.trim() ? { expires_in: expires.trim() } : {}) };
    return (await ask<{ token: string }>(apiUrl(["tokens"]), { method: "POST", body })).token;
  };
  return (
    <SecretForm
      title="New token"
      what="The token"
      words="This is the token. It is shown only once; Headway stores a hash."
      command={command(["tokens", "create", name || "NAME"], { role, tenant, expires: expires.trim() })}
      make={make}
      onClose={onClose}
    >
      {me.value?.token_id === null && <p class="hint tone-warn">The first token turns on sign-in, also for this page.</p>}
      <Field label="Name of the user or program" required value={name} onValue={setName} />
      <Select label="Role" value={role} onValue={(value) => setRole(value as Role)} options={(Object.keys(MAY) as Role[]).map((one) => [one, `${one}: ${MAY[one]}`])} />
      <Field label="Tenant, * for all" required disabled={!seesAll.value} value={tenant} onValue={setTenant} />
      <Field label="Lifetime, such as 90d; empty: no expiry" value={expires} onValue={setExpires} />
    </SecretForm>
  );
}

// --- webhooks

function Webhooks() {
  const [rotating, setRotating] = useState<Webhook | null>(null);
  return (
    <>
      <Kept<Webhook>
        id="webhooks"
        title="Webhooks"
        word="webhook"
        columns={[["URL", "cell-words"], ["State"], ["Events"], ["Tenant"], ["Created"]]}
        empty={<p class="quiet">No webhooks. A webhook notifies a URL when a job ends: signed, and retried for a day.</p>}
        row={(hook, again) => ({
          key: hook.id,
          cells: [
            <>
              <Text of={hook.url ?? "the callback_url of jobs"} most={120} />
              <div class="small-text faint">
                <Text of={hook.note} most={120} />
              </div>
              {hook.secrets > 1 && <div class="small-text faint">signed with {hook.secrets} secrets</div>}
            </>,
            <Badge state={hook.enabled ? "on" : "off"} />,
            visible(hook.events.map((event) => (event === "*" ? "every end" : event)).join(", ")),
            ofTenant(hook.tenant),
            <Time at={hook.created_at} />,
            <>
              {hook.url && (
                <button type="button" class="small" onClick={() => void testWebhook(hook)}>
                  Test
                </button>
              )}
              <button type="button" class="small ghost" onClick={() => setRotating(hook)}>
                New secret
              </button>
              <button type="button" class="small ghost" onClick={() => void toggleWebhook(hook, again)}>
                {hook.enabled ? "Disable" : "Enable"}
              </button>
              {hook.url && (
                <button type="button" class="small grave" onClick={() => removeWebhook(hook, again)}>
                  Remove
                </button>
              )}
            </>,
          ],
        })}
        form={(onClose) => <NewWebhook onClose={onClose} />}
      />
      {rotating && <NewSecret hook={rotating} onClose={() => setRotating(null)} />}
    </>
  );
}

function eventsOf(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

function NewWebhook({ onClose }: { onClose: () => void }) {
  const [url, setUrl] = useState("");
  const [events, setEvents] = useState("*");
  const [note, setNote] = useState("");
  const make = async (): Promise<string> => (await ask<{ secret: string }>(apiUrl(["webhooks"]), { method: "POST", body: { url, events: eventsOf(events), note } })).secret;
  return (
    <SecretForm title="New webhook" what="The secret" words="This secret signs the messages. It is shown only once." command={command(["webhooks", "add", url || "URL"], { event: eventsOf(events), note })} make={make} onClose={onClose}>
      <Field label="URL" type="url" required placeholder="https://example.org/hook" value={url} onValue={setUrl} />
      <Field label="Events, * for all" required list="webhook-events" value={events} onValue={setEvents} />
      <datalist id="webhook-events">
        {EVENTS.map((event) => (
          <option key={event} value={event} />
        ))}
      </datalist>
      <Field label="Note" maxLength={200} value={note} onValue={setNote} />
    </SecretForm>
  );
}

function NewSecret({ hook, onClose }: { hook: Webhook; onClose: () => void }) {
  const [keep, setKeep] = useState("24h");
  const make = async (): Promise<string> => (await ask<{ secret: string }>(apiUrl(["webhooks", hook.id, "rotate"]), { method: "POST", body: { keep: keep.trim() } })).secret;
  return (
    <SecretForm title="New secret" what="The secret" words="This secret signs from now on. It is shown only once." command={command(["webhooks", "rotate", hook.id], { keep: keep.trim() })} make={make} onClose={onClose}>
      <p class="mono">
        <Text of={hook.url ?? "the callback_url of jobs"} most={120} />
      </p>
      <Field label="Keep the old secret for; 0s if it has leaked" required value={keep} onValue={setKeep} />
    </SecretForm>
  );
}

// --- the audit log

function AuditLog() {
  const { query } = route.value;
  const read = useRead<Page<AuditLogEntry>>(apiUrl(["audit-log"], { limit: 50, cursor: query["cursor"], actor: query["actor"], action: query["action"], target: query["target"] }));
  const field = (label: string, name: string) => (
    <label>
      {label}
      <input value={query[name] ?? ""} onChange={(event) => go(href(["settings"], { ...query, cursor: undefined, [name]: event.currentTarget.value.trim() }))} />
    </label>
  );
  return (
    <Collection
      id="audit-log"
      title="Audit log"
      before={
        <>
          <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
            {field("Actor", "actor")}
            {field("Action", "action")}
            {field("Target", "target")}
          </form>
          <Problem words={read.problem} again={read.again} />
        </>
      }
      columns={[["Time", "figure"], ["Actor"], ["Action"], ["Target", "small-text"], ["Details", "cell-words"]]}
      items={read.data?.items}
      empty={<p class="quiet">No entries yet. Every action of an operator or admin is recorded here and cannot be changed.</p>}
      row={(action, place) => ({
        key: `${action.at} ${place}`,
        cells: [
          <Time at={action.at} />,
          <>
            <Text of={action.actor} most={60} />
            <div class="small-text faint">
              <Text of={action.origin} most={60} />
            </div>
          </>,
          visible(action.action),
          <code>
            <Text of={action.target} most={80} />
          </code>,
          <code class="small-text">{visible(clip(writeExact(action.detail), 200))}</code>,
        ],
      })}
    >
      <nav class="pager" aria-label="Older and newer">
        {query["cursor"] && (
          <a class="button" href={href(["settings"], { ...query, cursor: undefined })}>
            Newest
          </a>
        )}
        {read.data?.next_cursor && (
          <a class="button" href={href(["settings"], { ...query, cursor: read.data.next_cursor })}>
            Older
          </a>
        )}
      </nav>
      <Command line={command(["audit-log"], { actor: query["actor"], action: query["action"], target: query["target"] })} />
    </Collection>
  );
}
