/** Lines and bars over time, drawn by uPlot in the colours of the page. uPlot is loaded when the first chart is shown. */
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { duration, inZone } from "./format.ts";
import { theme } from "./state.ts";
import { Legend } from "./ui.tsx";

type Plot = typeof uPlot;

let known: Plot | null = null;

/** Return what draws, once it is loaded; a chart that cannot be loaded stays empty, and its summary says the same. */
function usePlot(): Plot | null {
  const [plot, setPlot] = useState(() => known);
  useEffect(() => {
    if (plot === null)
      void import("./plot.js").then(
        (loaded) => setPlot(() => (known = loaded.default)),
        () => undefined,
      );
  }, []);
  return plot;
}

export interface Line {
  label: string;
  values: readonly (number | null)[];
  /** The name of a colour of the page: `good`, `bad`, `accent`, `faint`. */
  colour: string;
  kind?: "line" | "bars" | "points";
}

interface Props {
  title: string;
  /** The same in words, for screen readers. */
  summary: string;
  at: readonly number[];
  lines: readonly Line[];
  unit: "count" | "seconds";
  /** The indexes of two lines between which most values lie. */
  band?: readonly [number, number];
  height?: number;
}

export function Chart({ title, summary, at, lines, unit, band, height = 150 }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const shape = lines.map((line) => `${line.label} ${line.colour} ${line.kind ?? ""}`).join("|");
  const chosen = theme.value;
  const plot = usePlot();
  const step = at.length > 1 ? at[1]! - at[0]! : 1;

  useEffect(() => {
    const element = frame.current;
    if (element === null || plot === null) return undefined;
    const make = (): void => {
      chart.current?.destroy();
      chart.current = new plot(optionsOf(plot, element, lines, unit, band, height, step), dataOf(at, lines), element);
    };
    make();
    const watch = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return () => {
      watch.disconnect();
      dark.removeEventListener("change", make);
      chart.current?.destroy();
      chart.current = null;
    };
  }, [plot, shape, unit, height, chosen, step, band?.join()]);

  useEffect(() => chart.current?.setData(dataOf(at, lines)), [at, lines]);

  return (
    <figure class="chart">
      <figcaption>
        {title}
        <Legend keys={lines.filter((line) => line.label).map((line) => [line.colour, line.label])} />
      </figcaption>
      <div ref={frame} class="plot" role="img" aria-label={`${title}. ${summary}`} />
    </figure>
  );
}

function dataOf(at: readonly number[], lines: readonly Line[]): uPlot.AlignedData {
  return [[...at], ...lines.map((line) => [...line.values])];
}

function optionsOf(plot: Plot, element: HTMLElement, lines: readonly Line[], unit: string, band: readonly [number, number] | undefined, height: number, step: number): uPlot.Options {
  const colour = (name: string): string => colourOf(element, name);
  const said = (value: number): string => (unit === "seconds" ? duration(value * 1000) : value.toLocaleString("en-US"));
  // Half a bar, so that the first and the last are complete.
  const edge = lines.some((line) => line.kind === "bars") ? step / 2 : 0;
  const axis: uPlot.Axis = { stroke: colour("faint"), grid: { stroke: colour("rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width: Math.max(200, element.clientWidth),
    height,
    legend: { show: false },
    cursor: { y: false, points: { show: true } },
    scales: { x: { range: (_, from, to) => [from - edge, to + edge] }, y: { range: (_, __, most) => [0, Math.max(unit === "seconds" ? 0.1 : 4, (most ?? 0) * 1.1)] } },
    axes: [
      { ...axis, size: 30, space: 70, values: (_, splits) => splits.map((value) => moment(value, (splits.at(-1) ?? 0) - (splits[0] ?? 0))) },
      { ...axis, size: 52, space: 34, values: (_, splits) => splits.map((value) => (unit === "count" && value % 1 ? "" : said(value))) },
    ],
    series: [
      {},
      ...lines.map((line): uPlot.Series => {
        const stroke = colour(line.colour);
        if (line.kind === "bars") return { label: line.label, stroke, fill: stroke, width: 0, paths: plot.paths.bars!({ size: [0.8, 14] }), points: { show: false } };
        if (line.kind === "points") return { label: line.label, stroke, width: 0, paths: () => null, points: { show: true, size: 6, fill: stroke } };
        return { label: line.label, stroke, width: 2, spanGaps: true, points: { show: false } };
      }),
    ],
    ...(band ? { bands: [{ series: [band[0], band[1]], fill: colour("band") }] } : {}),
  };
}

/** Return the current value of a colour: only a computed style knows the active theme. */
function colourOf(element: HTMLElement, name: string): string {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name}-drawn)`;
  element.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function moment(seconds: number, range: number): string {
  const text = inZone(seconds * 1000, undefined);
  return range > 2 * 86_400 ? text.slice(5, 10) : text.slice(11, range < 300 ? 19 : 16);
}
