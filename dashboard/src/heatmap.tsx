/** A year of decisions, day by day: the ledger made visible. */
import { useMemo } from "preact/hooks";
import { counted, DAY } from "./format.ts";
import { toneOfDay, type DayCount } from "./summary.ts";

const CELL = 13;
const WEEKS = 53;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** Draw the weeks up to a day; a year touches 53 of them. Days before the first one are left out. */
export function HeatMap({ days, from, last }: { days: ReadonlyMap<string, DayCount>; from: string; last: string }) {
  const cells = useMemo(() => {
    const end = Date.parse(`${last}T00:00:00Z`);
    const first = end - ((WEEKS - 1) * 7 + new Date(end).getUTCDay()) * DAY;
    return Array.from({ length: Math.round((end - first) / DAY) + 1 }, (_, place) => ({ date: new Date(first + place * DAY).toISOString().slice(0, 10), week: Math.floor(place / 7), weekday: place % 7 })).filter((cell) => cell.date >= from);
  }, [from, last]);
  const months = cells.filter((cell) => cell.weekday === 0 && Number(cell.date.slice(8)) <= 7);
  return (
    <div class="heat-frame" tabIndex={0} role="img" aria-label={summaryOf(days)}>
      <svg class="heat" viewBox={`0 0 ${WEEKS * CELL + 2} ${7 * CELL + 18}`} width={WEEKS * CELL + 2} height={7 * CELL + 18}>
        {months.map((cell) => (
          <text key={cell.date} x={cell.week * CELL} y={10}>
            {MONTHS[Number(cell.date.slice(5, 7)) - 1]}
          </text>
        ))}
        {cells.map((cell) => {
          const day = days.get(cell.date);
          const tone = toneOfDay(day);
          return (
            <g key={cell.date} class={`day tone-${tone}`}>
              <rect x={cell.week * CELL} y={cell.weekday * CELL + 16} width={CELL - 2} height={CELL - 2} rx={2}>
                <title>{`${cell.date}: ${wordsOf(day)}`}</title>
              </rect>
              {/* Not by colour alone: what went wrong has a mark in it. */}
              {tone === "bad" && <path d={`M${cell.week * CELL + 3} ${cell.weekday * CELL + 19}l5 5m0 -5l-5 5`} />}
              {tone === "warn" && <path d={`M${cell.week * CELL + 3} ${cell.weekday * CELL + 21.5}h5`} />}
            </g>
          );
        })}
      </svg>
    </div>
  );
}

function wordsOf(day: DayCount | undefined): string {
  if (day === undefined) return "nothing";
  const parts = (["fired", "failed", "skipped", "missed", "other"] as const).filter((name) => day[name]).map((name) => `${day[name]} ${name}`);
  return parts.join(", ") || "nothing";
}

function summaryOf(days: ReadonlyMap<string, DayCount>): string {
  const sum = { fired: 0, failed: 0, skipped: 0, missed: 0, other: 0 };
  for (const day of days.values()) for (const name of Object.keys(sum) as (keyof typeof sum)[]) sum[name] += day[name];
  return `Calendar with decisions on ${counted(days.size, "day")}: ${sum.fired} fired well, ${sum.failed} failed, ${sum.skipped} skipped, ${sum.missed} missed. The table of occurrences has each of them.`;
}
