/** Settings: who one is and what that allows, how the pages behave, tokens, webhooks, and what people did. */
import { useState } from "preact/hooks";
import { removeWebhook, revokeToken, signOut, testWebhook, toggleWebhook } from "../actions.tsx";
import { apiUrl, ask, wordsOf } from "../api.ts";
import { command } from "../cli.ts";
import { Dialog } from "../dialog.tsx";
import { writeExact, type Json } from "../exact.ts";
import { clip, visible } from "../format.ts";
import { useRead, useTitle } from "../hooks.ts";
import { go, href, route } from "../router.ts";
import { announces, may, me, seesAll, shortcuts, theme, type Theme } from "../state.ts";
import { say } from "../toasts.tsx";
import type { Action, Page, Role, Token, Webhook } from "../types.ts";
import { Badge, Card, Command, Copy, DO, Facts, Problem, Table, Text, Time } from "../ui.tsx";

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
          <Trail />
        </>
      ) : (
        <p class="faint">Tokens, webhooks and the trail are shown to admins.</p>
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
          ["Name", who.token_id ? <Text of={who.name} most={80} /> : "nobody in particular: no token is needed here yet"],
          ["Role", `${who.role}: ${MAY[who.role]}`],
          ["Sees", seesAll.value ? "all tenants" : <>the tenant <Text of={who.tenant} most={80} />; what others have does not exist here</>],
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
    <Card id="behaviour" title="These pages" aside={<span class="faint">kept in this browser only</span>}>
      <div class="stack">
      <label>
        Theme
        <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
          <option value="system">as the system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
      <label class="inline">
        <input type="checkbox" checked={shortcuts.value === "on"} onChange={() => (shortcuts.value = shortcuts.value === "on" ? "off" : "on")} /> single letters are shortcuts
      </label>
      <label class="inline">
        <input type="checkbox" checked={announces.value === "on"} onChange={() => (announces.value = announces.value === "on" ? "off" : "on")} /> tell screen readers how far a job is
      </label>
      </div>
    </Card>
  );
}

// --- tokens

function Tokens() {
  const read = useRead<Page<Token>>(apiUrl(["tokens"], { limit: 100 }));
  const [isMaking, setMaking] = useState(false);
  const items = read.data?.items ?? [];
  return (
    <Card
      id="tokens"
      title="Tokens"
      aside={
        <button type="button" class="small" onClick={() => setMaking(true)}>
          New token
        </button>
      }
    >
      <Problem words={read.problem} again={read.again} />
      {read.data && items.length === 0 && (
        <div class="quiet">
          <p>There are none: whoever reaches this address may do everything. The first token ends that; make it one of an admin for all tenants, and sign in with it.</p>
          <Command line={command(["tokens", "create", "me", "--role", "admin"])} />
        </div>
      )}
      {items.length > 0 && (
        <Table label="Table: tokens" columns={["Name", "State", "Role", "Tenant", "Made", "Expires", DO]}>
          {items.map((token) => (
            <tr key={token.id}>
              <td data-label="Name" class="cell-main">
                <Text of={token.name} most={80} />
                <div class="small-text faint mono">{token.id}</div>
              </td>
              <td data-label="State">
                <Badge state={token.state === "expired" ? "off" : token.state} {...(token.state === "expired" ? { word: "Expired" } : {})} />
              </td>
              <td data-label="Role">{token.role}</td>
              <td data-label="Tenant">{token.tenant === "*" ? "all" : <Text of={token.tenant} most={60} />}</td>
              <td data-label="Made">
                <Time at={token.created_at} /> by <Text of={token.created_by} most={60} />
              </td>
              <td data-label="Expires">{token.expires_at ? <Time at={token.expires_at} ahead /> : "never"}</td>
              <td class="cell-do">
                {token.state === "valid" && (
                  <button type="button" class="small grave" onClick={() => revokeToken(token, read.again)} aria-label={`Revoke the token of ${clip(token.name, 40)}`}>
                    Revoke
                  </button>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {isMaking && <NewToken onClose={() => (setMaking(false), read.again())} />}
    </Card>
  );
}

function NewToken({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("operator");
  const [tenant, setTenant] = useState(seesAll.value ? "*" : (me.value?.tenant ?? ""));
  const [expires, setExpires] = useState("90d");
  const [problem, setProblem] = useState<string | null>(null);
  const [value, setValue] = useState<string | null>(null);
  const make = async (): Promise<void> => {
    try {
      const body: { [name: string]: Json } = { name, role, tenant, ...(expires.trim() ? { expires_in: expires.trim() } : {}) };
      setValue((await ask<Token & { token: string }>(apiUrl(["tokens"]), { method: "POST", body })).token);
    } catch (error) {
      setProblem(wordsOf(error));
    }
  };
  const line = command(["tokens", "create", name || "NAME"], { role, tenant: tenant === "*" ? undefined : tenant, expires });
  return (
    <Dialog title="New token" onClose={onClose}>
      {value !== null ? (
        <>
          <p>This is the token. It is shown this once; only a hash of it is kept.</p>
          <p class="secret">
            <code>{value}</code> <Copy text={value} what="The token" />
          </p>
          <footer>
            <button type="button" class="main" onClick={onClose}>
              I have it
            </button>
          </footer>
        </>
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void make();
          }}
        >
          {me.value?.token_id === null && <p class="hint tone-warn">The first token ends access without one, for this page too: you will have to sign in.</p>}
          <label>
            Who or what will use it
            <input required value={name} onInput={(event) => setName(event.currentTarget.value)} />
          </label>
          <label>
            Role
            <select value={role} onChange={(event) => setRole(event.currentTarget.value as Role)}>
              {(Object.keys(MAY) as Role[]).map((one) => (
                <option key={one} value={one}>
                  {one}: {MAY[one]}
                </option>
              ))}
            </select>
          </label>
          <label>
            Tenant, * for all
            <input required disabled={!seesAll.value} value={tenant} onInput={(event) => setTenant(event.currentTarget.value)} />
          </label>
          <label>
            Counts for so long, empty for ever
            <input value={expires} onInput={(event) => setExpires(event.currentTarget.value)} />
          </label>
          <Command line={line} label="The same in a terminal" />
          <Problem words={problem} />
          <footer>
            <button type="button" onClick={onClose}>
              Leave it
            </button>
            <button type="submit" class="main">
              Make it
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}

// --- webhooks

function Webhooks() {
  const read = useRead<Page<Webhook>>(apiUrl(["webhooks"], { limit: 100 }));
  const [isMaking, setMaking] = useState(false);
  const items = read.data?.items ?? [];
  return (
    <Card
      id="webhooks"
      title="Webhooks"
      aside={
        <button type="button" class="small" onClick={() => setMaking(true)}>
          New webhook
        </button>
      }
    >
      <Problem words={read.problem} again={read.again} />
      {read.data && items.length === 0 && <p class="quiet">Nobody is told when jobs end. A webhook tells a URL of yours, signed and retried for a day.</p>}
      {items.length > 0 && (
        <Table label="Table: webhooks" columns={["To", "State", "About", "Tenant", "Made", DO]}>
          {items.map((hook) => (
            <tr key={hook.id}>
              <td data-label="To" class="cell-words">
                <Text of={hook.url ?? "the callback_url of jobs"} most={120} />
                {hook.note && (
                  <div class="small-text faint">
                    <Text of={hook.note} most={120} />
                  </div>
                )}
              </td>
              <td data-label="State">
                <Badge state={hook.enabled ? "on" : "off"} />
              </td>
              <td data-label="About">{visible(hook.events.map((event) => (event === "*" ? "every end" : event)).join(", "))}</td>
              <td data-label="Tenant">{hook.tenant === "*" ? "all" : <Text of={hook.tenant} most={60} />}</td>
              <td data-label="Made">
                <Time at={hook.created_at} />
              </td>
              <td class="cell-do">
                {hook.url && (
                  <button type="button" class="small" onClick={() => void testWebhook(hook)}>
                    Test
                  </button>
                )}
                <button type="button" class="small ghost" onClick={() => void toggleWebhook(hook, read.again)}>
                  {hook.enabled ? "Disable" : "Enable"}
                </button>
                {hook.url && (
                  <button type="button" class="small grave" onClick={() => removeWebhook(hook, read.again)}>
                    Remove
                  </button>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {isMaking && <NewWebhook onClose={() => (setMaking(false), read.again())} />}
    </Card>
  );
}

function NewWebhook({ onClose }: { onClose: () => void }) {
  const [url, setUrl] = useState("");
  const [events, setEvents] = useState("*");
  const [note, setNote] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const make = async (): Promise<void> => {
    try {
      const made = await ask<Webhook & { secret: string }>(apiUrl(["webhooks"]), { method: "POST", body: { url, events: events.split(/[\s,]+/).filter(Boolean), note } });
      setSecret(made.secret);
      say({ words: "The webhook is made.", command: command(["webhooks", "add", url]) });
    } catch (error) {
      setProblem(wordsOf(error));
    }
  };
  return (
    <Dialog title="New webhook" onClose={onClose}>
      {secret !== null ? (
        <>
          <p>This secret signs the messages. It is shown this once.</p>
          <p class="secret">
            <code>{secret}</code> <Copy text={secret} what="The secret" />
          </p>
          <footer>
            <button type="button" class="main" onClick={onClose}>
              I have it
            </button>
          </footer>
        </>
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void make();
          }}
        >
          <label>
            URL
            <input required type="url" value={url} placeholder="https://example.org/hook" onInput={(event) => setUrl(event.currentTarget.value)} />
          </label>
          <label>
            Events, * for all
            <input required value={events} list="webhook-events" onInput={(event) => setEvents(event.currentTarget.value)} />
          </label>
          <datalist id="webhook-events">
            {EVENTS.map((event) => (
              <option key={event} value={event} />
            ))}
          </datalist>
          <label>
            Note
            <input value={note} maxLength={200} onInput={(event) => setNote(event.currentTarget.value)} />
          </label>
          <Command line={command(["webhooks", "add", url || "URL"])} label="The same in a terminal" />
          <Problem words={problem} />
          <footer>
            <button type="button" onClick={onClose}>
              Leave it
            </button>
            <button type="submit" class="main">
              Make it
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}

// --- the trail

function Trail() {
  const { query } = route.value;
  const read = useRead<Page<Action>>(apiUrl(["trail"], { limit: 50, cursor: query["cursor"], actor: query["actor"], action: query["action"], target: query["target"] }));
  const items = read.data?.items ?? [];
  const field = (label: string, name: string) => (
    <label>
      {label}
      <input value={query[name] ?? ""} onChange={(event) => go(href(["settings"], { ...query, cursor: undefined, [name]: event.currentTarget.value.trim() }))} />
    </label>
  );
  return (
    <Card id="trail" title="What people did">
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        {field("Who", "actor")}
        {field("What", "action")}
        {field("To what", "target")}
      </form>
      <Problem words={read.problem} again={read.again} />
      {read.data && items.length === 0 && <p class="quiet">Nothing yet. Every action of an operator or admin is a line here, and none can be changed.</p>}
      {items.length > 0 && (
        <Table label="Trail" columns={["When", "Who", "What", "To what", "More"]}>
          {items.map((action, place) => (
            <tr key={`${action.at} ${place}`}>
              <td data-label="When" class="figure">
                <Time at={action.at} />
              </td>
              <td data-label="Who">
                <Text of={action.actor} most={60} />
                <div class="small-text faint">
                  <Text of={action.origin} most={60} />
                </div>
              </td>
              <td data-label="What">{visible(action.action)}</td>
              <td data-label="To what" class="mono small-text">
                <Text of={action.target} most={80} />
              </td>
              <td data-label="More" class="mono small-text cell-words">
                {visible(clip(writeExact(action.detail), 200))}
              </td>
            </tr>
          ))}
        </Table>
      )}
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
      <Command line={command(["trail"])} />
    </Card>
  );
}
