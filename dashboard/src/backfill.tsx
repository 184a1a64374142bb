/** Backfill: count the jobs for past instants first, then enqueue them. */
import { useState } from "preact/hooks";
import { ask } from "./api.ts";
import { zoneOf } from "./cron.ts";
import { Field, FormDialog } from "./dialog.tsx";
import { count, counted, DAY, inZone } from "./format.ts";
import { serverNow } from "./state.ts";
import { say } from "./toasts.tsx";
import type { Schedule } from "./models.ts";
import { Time } from "./ui.tsx";
import { scheduleCommand, scheduleUrl } from "./whose.ts";

interface Filled {
  count: number;
  instants: string[];
}

const SHOWN = 50;

export function Backfill({ schedule, onClose, onDone }: { schedule: Schedule; onClose: () => void; onDone: () => void }) {
  const zone = zoneOf(schedule.trigger) ?? "UTC";
  const local = (at: number): string => inZone(at, zone).slice(0, 16).replace(" ", "T");
  const [from, setFrom] = useState(() => local(serverNow() - DAY));
  const [to, setTo] = useState(() => local(serverNow()));
  const [again, setAgain] = useState(false);
  const [found, setFound] = useState<Filled | null>(null);
  const line = scheduleCommand("backfill", schedule, { from, to, again: again || undefined });
  const isDry = found === null;
  const run = async (): Promise<void> => {
    const answer = await ask<Filled>(scheduleUrl(schedule, ["backfill"]), { method: "POST", body: { from, to, again, dry_run: isDry } });
    if (isDry) return setFound(answer);
    say({ words: `${counted(answer.count, "job")} enqueued for past instants of ${schedule.name}.`, command: line });
    onDone();
    onClose();
  };
  const changed = <Value,>(set: (value: Value) => void) => (value: Value): void => {
    set(value);
    setFound(null);
  };
  return (
    <FormDialog title={`Backfill ${schedule.name}`} onClose={onClose} act={run} verb={isDry ? "Count" : `Enqueue ${counted(found.count, "job")}`} isReady={found?.count !== 0} command={line}>
      <p>A job is enqueued for each past instant that has not fired. Repeating it adds nothing. Times are by the clock of {zone}.</p>
      <div class="fields">
        <Field label="From" type="datetime-local" required value={from} onValue={changed(setFrom)} />
        <Field label="To" type="datetime-local" required value={to} onValue={changed(setTo)} />
      </div>
      <label class="inline">
        <input type="checkbox" checked={again} onChange={() => changed(setAgain)(!again)} /> also those that have fired
      </label>
      {found && (
        <div class="plan" aria-live="polite">
          <p>
            <strong>{found.count === 0 ? "Nothing to backfill." : `${counted(found.count, "job")} would be enqueued.`}</strong>
          </p>
          <ul class="plain scrolls">
            {found.instants.slice(0, SHOWN).map((one) => (
              <li key={one}>
                <span class="mono">{inZone(Date.parse(one), zone)}</span> <Time at={one} zone={zone} />
              </li>
            ))}
            {found.instants.length > SHOWN && <li class="faint">and {count(found.instants.length - SHOWN)} more</li>}
          </ul>
        </div>
      )}
    </FormDialog>
  );
}
