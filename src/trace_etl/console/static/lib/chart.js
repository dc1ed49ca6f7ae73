// Time series and point plots with uPlot.
import { html, useEffect, useRef } from "../vendor/preact.js";
import uPlot from "../vendor/uplot.js";

const sheet = document.createElement("link");
sheet.rel = "stylesheet";
sheet.href = new URL("../vendor/uplot.css", import.meta.url).href;
document.head.append(sheet);

/** The value of a colour of the current theme. @param {string} name */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Call back when the colours change: by choice, or with the system. Returns the end of it. @param {() => void} draw */
export function watchTheme(draw) {
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  addEventListener("themechange", draw);
  scheme.addEventListener("change", draw);
  return () => {
    removeEventListener("themechange", draw);
    scheme.removeEventListener("change", draw);
  };
}

/** Steps of an axis that counts. */
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

/** @param {any} _ @param {number[]} splits */
const clockValues = (_, splits) =>
  splits.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }));

/**
 * @param {{data: any[][], series: {label: string, colour: string, kind?: "bars" | "line" | "points"}[], height?: number,
 *   isTime?: boolean, label: string}} props
 */
export function Chart({ data, series, height = 160, isTime = true, label }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  useEffect(() => {
    const make = () => {
      if (!box.current) return;
      plot.current?.destroy();
      const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      plot.current = new uPlot(
        {
          width: box.current.clientWidth, height, padding: [8, 8, 0, 0],
          scales: { x: { time: isTime }, y: { range: (_, min, max) => [Math.min(0, min ?? 0), isTime ? Math.max(max ?? 0, 4) : Math.max(max ?? 1, (min ?? 0) + 1)] } },
          legend: { show: false },
          cursor: { y: false, points: { show: false } },
          axes: [{ ...axis, size: 24, values: isTime ? clockValues : undefined }, { ...axis, size: 48, incrs: isTime ? WHOLE : undefined }],
          series: [{}, ...series.map((one) => ({
            label: one.label, stroke: colour(one.colour), width: one.kind === "points" ? 0 : 1.4,
            fill: one.kind === "bars" ? colour(one.colour) : undefined,
            points: { show: one.kind === "points", size: 5, fill: colour(one.colour) },
            paths: one.kind === "bars" ? uPlot.paths.bars({ size: [0.7, 14] }) : one.kind === "points" ? () => null : undefined,
          }))],
        },
        /** @type {any} */ (data),
        box.current,
      );
    };
    make();
    const resize = new ResizeObserver(() => box.current && plot.current?.setSize({ width: box.current.clientWidth, height }));
    resize.observe(box.current);
    const unwatch = watchTheme(make);
    return () => {
      resize.disconnect();
      unwatch();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [series.map((one) => one.label).join(), height, isTime]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="plot" role="img" aria-label=${label}><div ref=${box} style=${{ minHeight: `${height}px` }} /></div>`;
}
