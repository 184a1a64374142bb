/** Create or edit a schedule, with a preview of the changes. */
import { useEffect, useState } from "preact/hooks";
import { apiUrl, ask, wordsOf } from "./api.ts";
import { command } from "./cli.ts";
import { inWords } from "./cron.ts";
import { bodyOf, changesOf, draftOf, EMPTY, putWords, type Draft } from "./definition.ts";
import { Field, FormDialog } from "./dialog.tsx";
import { clip, visible } from "./format.ts";
import { useSettled } from "./hooks.ts";
import { seesAll, stats } from "./state.ts";
import { say } from "./toasts.tsx";
import type { Schedule } from "./models.ts";
import type { Preview, SchedulePlan } from "./types.ts";
import { Fold, Select, Time } from "./ui.tsx";

const KINDS: readonly (readonly [string, string, string])[] = [
  ["cron", "at the times of a cron expression", "0 6 * * *"],
  ["every", "at a fixed rate", "15m"],
  ["after", "fixed delay after the last job ended", "5m"],
  ["at", "once", "2027-01-31T06:00:00"],
];

export function EditSchedule({ schedule, onClose, onDone }: { schedule: Schedule | null; onClose: () => void; onDone: (made: Schedule) => void }) {
  const [draft, setDraft] = useState<Draft>(() => (schedule === null ? { ...EMPTY, tz: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC" } : draftOf(schedule)));
  const [plan, setPlan] = useState<SchedulePlan | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const settled = useSettled(draft, 300);
  const query = schedule?.owner ? { owner: schedule.owner } : {};
  const guard: Record<string, string> = schedule === null ? { "If-None-Match": "*" } : { "If-Match": `"${schedule.revision}"` };

  useEffect(() => {
    if (!settled.name || !settled.task || !settled.rule) return setPlan(null);
    const mine = new AbortController();
    void (async () => {
      try {
        const text = bodyOf(settled, schedule);
        const found = await ask<SchedulePlan>(apiUrl(["schedules", settled.name], { dry_run: 1, ...query }), { method: "PUT", text, headers: guard, signal: mine.signal });
        setPlan(found);
        setProblem(null);
      } catch (error) {
        if (mine.signal.aborted) return;
        setPlan(null);
        setProblem(wordsOf(error));
      }
    })();
    return () => mine.abort();
  }, [settled]);

  const save = async (): Promise<void> => {
    const made = await ask<Schedule>(apiUrl(["schedules", draft.name], query), { method: "PUT", text: bodyOf(draft, schedule), headers: guard });
    say({ words: schedule === null ? `${draft.name} is created.` : `${draft.name} is changed.`, command: line });
    onDone(made);
  };

  const put = (name: keyof Draft, value: string): void => setDraft((before) => ({ ...before, [name]: value }));
  const input = (label: string, name: keyof Draft, placeholder = "", extra: { required?: boolean; list?: string; disabled?: boolean } = {}) => (
    <Field label={label} value={draft[name]} placeholder={placeholder} onValue={(value) => put(name, value)} {...extra} />
  );
  const select = (label: string, name: keyof Draft, options: readonly (readonly [string, string?])[]) => <Select label={label} value={draft[name]} onValue={(value) => put(name, value)} options={options} />;
  const kind = KINDS.find(([value]) => value === draft.kind);
  const words = draft.kind === "cron" ? inWords({ kind: "cron", expr: draft.rule }) : null;
  const tasks = [...new Set((stats.value?.workers ?? []).flatMap((worker) => worker.tasks))].sort();
  const line = command(...putWords(draft, schedule));
  const changes = schedule === null ? [] : changesOf(draft, schedule);
  return (
    <FormDialog
      title={schedule === null ? "New schedule" : `Change ${schedule.name}`}
      onClose={onClose}
      act={save}
      verb={schedule === null ? "Create" : "Save"}
      isReady={plan !== null && plan.action !== "nothing"}
      isWide
      command={line}
      problem={problem}
    >
      {schedule?.owner && (
        <p class="hint tone-warn">
          It is declared by {visible(clip(schedule.owner, 60))}, which puts its own definition back when it starts. To change it for good, change it there.
        </p>
      )}
      <div class="fields">
        {input("Name", "name", "daily-report", { required: true, disabled: schedule !== null })}
        {input("Task", "task", "report", { required: true, list: "tasks-to-run" })}
        {select("When", "kind", KINDS.map(([value, label]) => [value, `${value}: ${label}`]))}
        {input(draft.kind === "cron" ? "Cron expression" : "Trigger", "rule", kind?.[2] ?? "", { required: true })}
        {(draft.kind === "cron" || draft.kind === "at") && input("Time zone", "tz", "Europe/Berlin", { list: "zones" })}
        {draft.kind === "cron" && select("Daylight saving (DST)", "dst", [["shift"], ["skip"], ["both"]])}
      </div>
      {words && <p class="faint">That is {words}.</p>}
      <label>
        Arguments as JSON
        <textarea class="mono" rows={3} value={draft.args} onInput={(event) => put("args", event.currentTarget.value)} spellcheck={false} />
      </label>
      <Fold title="Policies">
        {() => (
          <div class="fields">
            {select("Overlap", "overlap", [["skip"], ["queue"], ["allow"], ["replace"]])}
            {select("Missed runs", "missed", [["latest"], ["all"], ["skip"]])}
            {input("Deadline", "deadline", "4h")}
            {input("Expected duration", "expect", "10m")}
            {input("Jitter", "jitter", "30s")}
            {input("Queue", "queue", "default")}
            {input("Priority", "priority", "0")}
            {input("Attempts", "max_attempts", "1")}
            {input("Back-off", "backoff", "5s..5m")}
            {input("Tags", "tags", "reports, nightly")}
            {seesAll.value && input("Tenant", "tenant", "default", { disabled: schedule !== null })}
          </div>
        )}
      </Fold>
      <div class="plan" aria-live="polite">
        {plan !== null && (
          <>
            <p>
              {plan.action === "nothing" ? "This changes nothing." : plan.action === "create" ? "This creates a schedule." : `This changes ${changes.map(([name]) => name).join(", ") || "the definition"}.`}
            </p>
            <div class="plan-columns">
              {plan.next.before.length > 0 && <Instants title="Next, currently" items={plan.next.before} others={plan.next.after} />}
              <Instants title={plan.next.before.length ? "Next, after the change" : "Next"} items={plan.next.after} others={plan.next.before} marksNew />
            </div>
            {plan.warnings.map((warning) => (
              <p key={warning} class="hint tone-warn">
                {visible(warning)}
              </p>
            ))}
          </>
        )}
      </div>
      <datalist id="tasks-to-run">
        {tasks.map((task) => (
          <option key={task} value={task} />
        ))}
      </datalist>
      <datalist id="zones">
        {zones().map((zone) => (
          <option key={zone} value={zone} />
        ))}
      </datalist>
    </FormDialog>
  );
}

function zones(): string[] {
  const known = Intl as unknown as { supportedValuesOf?: (what: string) => string[] };
  return ["UTC", ...(known.supportedValuesOf?.("timeZone") ?? [])];
}

function Instants({ title, items, others, marksNew = false }: { title: string; items: readonly Preview[]; others: readonly Preview[]; marksNew?: boolean }) {
  const known = new Set(others.map((one) => one.instant));
  return (
    <div>
      <h3>{title}</h3>
      <ul class="plain">
        {items.map((one) => (
          <li key={one.instant} class={marksNew && others.length && !known.has(one.instant) ? "moved" : ""}>
            <span class="mono">{one.local.replace("T", " ")}</span> <Time at={one.instant} ahead />
            {one.note && <div class="hint tone-warn">{visible(one.note)}</div>}
          </li>
        ))}
        {items.length === 0 && <li class="faint">known when a job ends</li>}
      </ul>
    </div>
  );
}
