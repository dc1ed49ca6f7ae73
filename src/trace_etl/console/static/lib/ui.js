// Components that all pages use.
import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import * as format from "./format.js";
import { go } from "./router.js";

export { html };

/** The time, once per ten seconds, for relative times. */
const clock = signal(Date.now());
setInterval(() => (clock.value = Date.now()), 10_000);

// --- states ---------------------------------------------------------------------------------------

/** Every state has its own shape, so that colours are not needed to tell states apart. */
const SHAPES = {
  queued: html`<circle cx="8" cy="8" r="5" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="2.6 2.6" />`,
  running: html`<path d="M5 3.2v9.6L13 8z" fill="currentColor" />`,
  completed: html`<path d="M3 8.5l3.4 3.4L13 5" fill="none" stroke="currentColor" stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round" />`,
  failed: html`<path d="M4 4l8 8M12 4l-8 8" stroke="currentColor" stroke-width="2.4" stroke-linecap="round" />`,
  canceled: html`<circle cx="8" cy="8" r="5" fill="none" stroke="currentColor" stroke-width="2" /><path d="M4.8 11.2l6.4-6.4" stroke="currentColor" stroke-width="2" />`,
  retrying: html`<path d="M12.5 8a4.5 4.5 0 1 1-1.4-3.2" fill="none" stroke="currentColor" stroke-width="2" /><path d="M12.8 1.8v3.6H9.2" fill="none" stroke="currentColor" stroke-width="2" />`,
  paused: html`<path d="M5.5 3.5v9M10.5 3.5v9" stroke="currentColor" stroke-width="2.6" stroke-linecap="round" />`,
  warning: html`<path d="M8 2.2l6.3 11.3H1.7z" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linejoin="round" /><path d="M8 6.2v3.4M8 11.4v.6" stroke="currentColor" stroke-width="1.8" />`,
  idle: html`<circle cx="8" cy="8" r="2.4" fill="currentColor" />`,
};
const KINDS = {
  Queued: "queued", Running: "running", Completed: "completed", Failed: "failed", Canceled: "canceled",
  Retrying: "retrying", running: "running", complete: "completed", failed: "failed", canceled: "canceled",
  building: "running", rolled_back: "canceled", superseded: "canceled", waiting: "queued", written: "completed",
  pending: "queued", created: "running", completed: "completed", skipped: "idle", current: "completed", old: "idle",
};

/** @param {{kind: string, label?: string}} props */
export const Icon = ({ kind, label }) =>
  html`<svg class=${`icon state-${kind}`} viewBox="0 0 16 16" role=${label ? "img" : undefined} aria-label=${label}
    aria-hidden=${label ? undefined : "true"}>${SHAPES[kind] ?? SHAPES.idle}</svg>`;

/** @param {{status: string, text?: string}} props */
export function State({ status, text }) {
  const kind = KINDS[status] ?? status;
  return html`<span class=${`state state-${kind}`}><${Icon} kind=${kind} />${text ?? status}</span>`;
}

/** The state of a task: a failed one that runs again is retrying. @param {any} task */
export const taskState = (task) => (task.status === "Failed" && task.retry_at ? "Retrying" : task.status);

/** @param {{at: string | null | undefined, none?: string}} props */
export function Time({ at, none = "–" }) {
  if (!at) return html`<span class="muted">${none}</span>`;
  return html`<time datetime=${at} title=${format.absolute(at)}>${format.relative(at, clock.value)}</time>`;
}

/** @param {{id: string, children?: any}} props */
export const TaskLink = ({ id, children }) =>
  html`<a class="mono" href=${`/tasks/${id}`} title=${id}>${children ?? format.short(id)}</a>`;

/** @param {{dag: string, job?: string | null}} props */
export const JobLink = ({ dag, job }) =>
  html`<a href=${`/dags/${encodeURIComponent(dag)}`}>${dag}</a>${job &&
  html`<span class="muted"> / </span><a href=${`/dags/${encodeURIComponent(dag)}?job=${encodeURIComponent(job)}`}>${job}</a>`}`;

/** @param {{name: string}} props */
export const DatasetLink = ({ name }) => html`<a href=${`/datasets/${encodeURIComponent(name)}`}>${name}</a>`;

/** A number that links to what it counts. @param {{value: number, href: string, noun?: string}} props */
export const Count = ({ value, href, noun }) =>
  html`<a class=${value ? "num" : "num muted"} href=${href} title=${noun && format.count(value, noun)}>${format.number(value)}</a>`;

/** A tile with a number that links to what it counts. @param {{label: string, value: any, href?: string, icon?: string, hint?: any}} props */
export const Stat = ({ label, value, href, icon, hint }) => {
  const content = html`<span class="label">${icon && html`<${Icon} kind=${icon} />`}${label}</span><span class="value">${value}</span>`;
  return html`<div class="stat">${href ? html`<a href=${href}>${content}</a>` : content}<div class="hint">${hint ?? ""}</div></div>`;
};

// --- layout ---------------------------------------------------------------------------------------

/** @param {{title: any, trail?: any, actions?: any, children?: any}} props */
export function Page({ title, trail, actions, children }) {
  useEffect(() => {
    if (typeof title === "string") document.title = `${title} · Trace`;
  }, [title]);
  return html`<main id="main" tabindex="-1">
    <header class="page-head">
      <div class="page-title">${trail && html`<nav class="trail" aria-label="Breadcrumb">${trail}</nav>`}<h1>${title}</h1></div>
      <div class="actions">${actions}</div>
    </header>
    ${children}
  </main>`;
}

/** @param {{title?: any, actions?: any, class?: string, id?: string, children?: any}} props */
export const Panel = ({ title, actions, children, class: extra, id }) =>
  html`<section class=${`panel ${extra ?? ""}`} id=${id}>
    ${title && html`<header class="panel-head"><h2>${title}</h2><div class="actions">${actions}</div></header>`}
    ${children}
  </section>`;

/** Nothing to show, and what to do next. @param {{title: string, command?: string, children?: any}} props */
export const Empty = ({ title, command, children }) =>
  html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}
    ${command && html`<${Command} text=${command} />`}</div>`;

/** A command to copy. @param {{text: string}} props */
export function Command({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<div class="command"><code>${text}</code><button class="quiet" onClick=${copy}>${copied ? "Copied" : "Copy"}</button></div>`;
}

/** @param {{error: any}} props */
export function Failure({ error }) {
  if (!error) return null;
  const faults = error.problem?.errors ?? [];
  return html`<div class="failure" role="alert"><${Icon} kind="warning" />
    <div>${faults.length
      ? faults.map((fault) => html`<p>${fault.field && html`<code>${fault.field}</code>`} ${fault.message}</p>`)
      : html`<p>${error.message}</p>`}</div></div>`;
}

/** Show what is loaded, an error, or a quiet placeholder of the expected height. */
export function Loaded({ state, children, rows = 3 }) {
  if (state.data !== undefined) return html`${state.error && html`<${Failure} error=${state.error} />`}${children(state.data)}`;
  if (state.error) return html`<${Failure} error=${state.error} />`;
  return html`<div class="skeleton" role="status" aria-busy="true" aria-label="Loading">${Array.from({ length: rows }, () => html`<div />`)}</div>`;
}

/** @param {{items: [string, any][]}} props Pairs of a name and a value. */
export const Fields = ({ items }) =>
  html`<dl class="fields">${items.filter(([, value]) => value !== undefined && value !== null && value !== "").map(
    ([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

/** @param {{tabs: [string, string, any?][], current: string, href: (key: string) => string}} props */
export function Tabs({ tabs, current, href }) {
  const bar = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => { // a narrow bar scrolls sideways
    const [box, tab] = [bar.current, /** @type {HTMLElement | null | undefined} */ (bar.current?.querySelector("[aria-current]"))];
    if (box && tab) box.scrollLeft = tab.offsetLeft - box.offsetLeft - (box.clientWidth - tab.clientWidth) / 2;
  }, [current]);
  return html`<nav class="tabs" aria-label="Sections" ref=${bar}>${tabs.map(([key, label, note]) =>
    html`<a href=${href(key)} aria-current=${key === current ? "page" : undefined}>${label}${note !== undefined && note !== null &&
    html`<span class="note">${note}</span>`}</a>`)}</nav>`;
}

// --- tables ---------------------------------------------------------------------------------------

const ROW = 34;
const LINE = 40; // of a card: a label above its value
/** Whether the window has at most this width. @param {number} width */
function watchWidth(width) {
  const query = matchMedia(`(max-width: ${width}px)`);
  const found = signal(query.matches);
  query.addEventListener("change", () => (found.value = query.matches));
  return found;
}
/** Whether the screen is as narrow as a phone. */
export const isNarrow = watchWidth(760);
const isTablet = watchWidth(1000);

/**
 * A table that draws only the rows in view. On a phone, each row is a card with two columns of labels and values, and a
 * `wide` column takes a line of its own. Phones and tablets leave out `minor` columns.
 * @param {{columns: {label: any, width?: string, align?: string, render: (row: any, index: number) => any, wide?: boolean, minor?: boolean}[],
 *   rows: any[], onEnd?: () => void, href?: (row: any) => string, height?: number, label: string, selected?: (row: any) => boolean,
 *   isGrid?: boolean}} props
 */
export function Table({ columns: all, rows, onEnd, href, height, label, selected, isGrid }) {
  const isCards = isNarrow.value && !isGrid;
  const columns = isTablet.value ? all.filter((column) => !column.minor) : all;
  const rowHeight = isCards ? 16 + LINE * countLines(columns) : ROW;
  const body = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [range, setRange] = useState({ from: 0, to: 80 });
  const [scrolls, setScrolls] = useState(false);
  const isVirtual = rows.length > 60;
  const measure = () => {
    const box = body.current;
    if (!box) return;
    setScrolls(isVirtual || box.scrollWidth > box.clientWidth);
    if (!isVirtual) {
      if (onEnd) onEnd();
      return;
    }
    const from = Math.max(0, Math.floor(box.scrollTop / rowHeight) - 10);
    const to = Math.ceil((box.scrollTop + box.clientHeight) / rowHeight) + 10;
    if (from !== range.from || to !== range.to) setRange({ from, to });
    if (onEnd && to >= rows.length) onEnd();
  };
  useLayoutEffect(measure, [rows.length, height, isCards]);
  const template = columns.map((column) => column.width ?? "1fr").join(" ");
  // A narrow screen scrolls sideways. Every row is as wide, so that columns stay aligned.
  const minWidth = columns.reduce((sum, { width }) => sum + 16 + Number(/\d+(?=px)/.exec(width ?? "100px")?.[0] ?? 60), 16);
  const grid = isCards ? (isVirtual ? { height: `${rowHeight}px` } : {}) : { gridTemplateColumns: template, minWidth: `${minWidth}px` };
  const shown = isVirtual ? rows.slice(range.from, range.to) : rows;
  const first = isVirtual ? range.from : 0;
  const follow = (event, row) => {
    if (!href || event.target.closest("a, button, input") || String(getSelection())) return;
    go(href(row));
  };
  return html`<div class=${`table ${isCards ? "cards" : ""}`}>
    <div class="table-scroll" role="table" aria-label=${label} aria-rowcount=${rows.length} ref=${body} onScroll=${measure} tabindex=${scrolls ? 0 : undefined}
      style=${{ maxHeight: isVirtual ? `${height ?? 640}px` : "none" }}>
      <div class="table-row table-head" role="row" style=${isCards ? {} : grid}>
        ${columns.map((column) => html`<div role="columnheader" class=${column.align ?? ""}>${column.label}</div>`)}
      </div>
      <div class="table-body" role="rowgroup" style=${isVirtual ? { height: `${rows.length * rowHeight}px` } : {}}>
        <div role="presentation" style=${isVirtual ? { transform: `translateY(${first * rowHeight}px)` } : {}}>
          ${shown.map((row, i) => html`<div key=${row.key ?? first + i} role="row" class=${`table-row ${href ? "linked" : ""} ${selected?.(row) ? "selected" : ""}`}
            style=${grid} onClick=${(event) => follow(event, row)}>
            ${columns.map((column) => html`<div role="cell" class=${`${column.align ?? ""} ${column.wide ? "wide" : ""}`}>${isCards && column.label ? html`<span class="cell-label" aria-hidden="true">${column.label}</span>` : ""}${column.render(row, first + i)}</div>`)}
          </div>`)}
        </div>
      </div>
    </div>
  </div>`;
}

/** How many lines a card has. @param {{wide?: boolean}[]} columns */
function countLines(columns) {
  const wide = columns.filter((column) => column.wide).length;
  return wide + Math.ceil((columns.length - wide) / 2);
}

// --- dialogs and messages -------------------------------------------------------------------------

/** @type {import("../vendor/preact.js").Signal<any>} */
const dialog = signal(null);
/** @type {import("../vendor/preact.js").Signal<{id: number, text: any, kind: string}[]>} */
const toasts = signal([]);
let toastId = 0;

/** Show a short message. @param {any} text @param {string} [kind] */
export function toast(text, kind = "completed") {
  const id = ++toastId;
  toasts.value = [...toasts.value, { id, text, kind }];
  setTimeout(() => (toasts.value = toasts.value.filter((item) => item.id !== id)), 6000);
}

/**
 * Ask before something is done, and say what will happen.
 * @param {{title: string, body: any, action: string, danger?: boolean, run: () => Promise<any>}} question
 */
export const ask = (question) => (dialog.value = question);

export function Overlays() {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [state, setState] = useState({ busy: false, error: null });
  const question = dialog.value;
  useEffect(() => {
    setState({ busy: false, error: null });
    if (question) box.current?.showModal();
    else box.current?.close();
  }, [question]);
  const run = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      const message = await question.run();
      dialog.value = null;
      if (message) toast(message);
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<dialog ref=${box} onClose=${() => (dialog.value = null)} aria-labelledby="dialog-title">
      ${question && html`<form method="dialog" onSubmit=${run}>
        <h2 id="dialog-title">${question.title}</h2>
        <div class="dialog-body">${question.body}</div>
        <${Failure} error=${state.error} />
        <div class="actions">
          <button type="button" onClick=${() => (dialog.value = null)}>Cancel</button>
          <button type="submit" class=${question.danger ? "danger" : "primary"} disabled=${state.busy}>${state.busy ? "Working …" : question.action}</button>
        </div>
      </form>`}
    </dialog>
    <div class="toasts" role="status" aria-live="polite">${toasts.value.map((item) =>
      html`<div class="toast" key=${item.id}><${Icon} kind=${item.kind} />${item.text}</div>`)}</div>`;
}
