// Numbers, times and sizes as text.
const NUMBER = new Intl.NumberFormat("en-US");
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** @param {number | null | undefined} value */
export const number = (value) => (value === null || value === undefined ? "–" : NUMBER.format(value));

/** Short form of a large number: 12.3K. @param {number} value */
export const compact = (value) => (Math.abs(value) < 10_000 ? NUMBER.format(value) : COMPACT.format(value));

/** @param {number} count @param {string} noun */
export const count = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : /(ch|sh|s|x)$/.test(noun) ? "es" : "s"}`;

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  let value = bytes;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const join = (large, name, small, unit) => `${large} ${name}${small ? ` ${small} ${unit}` : ""}`;
  if (seconds < 3600) return join(Math.floor(seconds / 60), "min", Math.floor(seconds % 60), "s");
  if (seconds < 86400) return join(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "min");
  return join(Math.floor(seconds / 86400), "d", Math.floor((seconds % 86400) / 3600), "h");
}

/** @param {string | null | undefined} from @param {string | null | undefined} to */
export const between = (from, to) =>
  from ? duration(((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000) : "–";

/** How long ago, or how soon. @param {string} at @param {number} [now] */
export function relative(at, now = Date.now()) {
  const seconds = (now - Date.parse(at)) / 1000;
  const far = Math.abs(seconds);
  const text =
    far < 5 ? "now" : far < 60 ? `${Math.round(far)} s` : far < 3600 ? `${Math.round(far / 60)} min`
    : far < 86400 ? `${Math.round(far / 3600)} h` : `${Math.round(far / 86400)} d`;
  return text === "now" ? text : seconds < 0 ? `in ${text}` : `${text} ago`;
}

/** @param {string} at */
export const absolute = (at) => new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });

/** The first part of an id, which every command accepts. One of version 7 begins with its time. @param {string} id */
export const short = (id) => id.slice(0, id[14] === "7" ? 18 : 8);

/** A value of a result as text. @param {any} value */
export function cell(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
