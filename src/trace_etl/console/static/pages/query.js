// Query the published datasets: editor, results, plot, download, history, and a link to share.
import { useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { get, getAll, path, post, postRaw } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { Editor } from "../lib/editor.js";
import * as format from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { address } from "../lib/router.js";
import { Empty, Failure, html, Page, Panel, toast } from "../lib/ui.js";
import { ResultTable } from "./dataset.js";

const HISTORY = "trace-queries";
const readHistory = () => { try { return JSON.parse(localStorage.getItem(HISTORY) ?? "[]"); } catch { return []; } };

export function QueryPage() {
  const shared = address.value.hash ? decodeURIComponent(address.value.hash) : "";
  const [shown, setShown] = useState({ text: shared || readHistory()[0] || "" });
  const [sql, setSql] = useState(shown.text);
  const open = (text) => { setShown({ text }); setSql(text); };
  const [run, setRun] = useState(/** @type {any} */ ({}));
  const [past, setPast] = useState(readHistory);
  const [columns, setColumns] = useState(/** @type {Record<string, string[]>} */ ({}));
  const abort = useRef(/** @type {AbortController | null} */ (null));
  const datasets = useLive(() => getAll("datasets", { published: true }), [], { matches: (c) => c.kind === "deploy" });
  useEffect(() => { if (shared) open(shared); }, [shared]);
  useEffect(() => { // names first; the columns of a dataset when it is opened or used
    if (datasets.data) setColumns((known) => Object.fromEntries(datasets.data.map((d) => [d.name, known[d.name] ?? []])));
  }, [datasets.data]);
  useEffect(() => {
    for (const d of datasets.data ?? []) if (new RegExp(`\\b${d.name}\\b`).test(sql) && !columns[d.name]?.length) loadColumns(d.name);
  }, [sql, datasets.data]);
  const asked = useRef(new Set());
  const loadColumns = async (name) => {
    if (asked.current.has(name)) return;
    asked.current.add(name);
    const detail = await get(`datasets/${path(name)}`, { limit: 1 }).catch(() => ({ columns: [] }));
    setColumns((known) => ({ ...known, [name]: detail.columns.map((column) => `${column.name}\t${column.type}`) }));
  };
  const execute = async () => {
    const text = sql.trim();
    if (!text) return;
    abort.current?.abort();
    abort.current = new AbortController();
    setRun({ busy: true, result: run.result });
    history.replaceState(null, "", `/query#${encodeURIComponent(text)}`);
    const kept = [text, ...readHistory().filter((old) => old !== text)].slice(0, 50);
    localStorage.setItem(HISTORY, JSON.stringify(kept));
    setPast(kept);
    try {
      setRun({ result: await post("query", { sql: text, limit: 10_000 }, abort.current.signal) });
    } catch (error) {
      if (error.name !== "AbortError") setRun({ error });
    }
  };
  const download = async (kind) => {
    try {
      const reply = await postRaw("query", { sql: sql.trim(), format: kind });
      const url = URL.createObjectURL(await reply.blob());
      const link = document.createElement("a");
      link.href = url;
      link.download = `result.${kind}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    } catch (error) {
      toast(error.message, "failed");
    }
  };
  const share = async () => {
    await navigator.clipboard.writeText(`${location.origin}/query#${encodeURIComponent(sql.trim())}`);
    toast("The link is copied.");
  };
  const names = useMemo(() => Object.fromEntries(Object.entries(columns).map(([name, list]) => [name, list.map((c) => c.split("\t")[0])])), [columns]);
  return html`<${Page} title="Query">
    <div class="query-layout">
      <div>
        <${Panel}>
          <${Editor} shown=${shown} onChange=${setSql} onRun=${execute} schema=${names} />
          <div class="panel-head"><div class="actions"><button class="primary" onClick=${execute} disabled=${run.busy}>${run.busy ? "Running …" : "Run"}</button>
            ${run.busy && html`<button onClick=${() => { abort.current?.abort(); setRun({}); }}>Stop</button>`}<kbd>Ctrl Enter</kbd></div>
            <div class="actions"><button onClick=${share}>Copy link</button><button onClick=${() => download("csv")}>CSV</button><button onClick=${() => download("parquet")}>Parquet</button></div></div>
        </${Panel}>
        <${Failure} error=${run.error} />
        ${run.result && html`<${Result} result=${run.result} />`}
        ${!run.result && !run.error && html`<${Panel}><${Empty} title="Run a query." command=${datasets.data?.[0] ? `trace query 'SELECT count(*) FROM ${datasets.data[0].name}'` : undefined}>It reads the committed partitions of published datasets, as of one moment.</${Empty}></${Panel}>`}
      </div>
      <div>
        <${Panel} title="Datasets"><div class="schema">${(datasets.data ?? []).map((d) => html`<details onToggle=${(e) => e.target.open && loadColumns(d.name)}><summary>${d.name}</summary>
          <ul>${(columns[d.name] ?? []).map((c) => html`<li><span class="mono">${c.split("\t")[0]}</span><span class="muted">${c.split("\t")[1]}</span></li>`)}</ul></details>`)}
          ${datasets.data?.length === 0 && html`<${Empty} title="No dataset is published." />`}</div></${Panel}>
        <${Panel} title="History" actions=${past.length > 0 && html`<button class="quiet" onClick=${() => { localStorage.removeItem(HISTORY); setPast([]); }}>Clear</button>`}>
          ${past.length ? html`<ul class="history">${past.slice(0, 12).map((text) => html`<li><button title=${text} onClick=${() => open(text)}>${text.replace(/\s+/g, " ")}</button></li>`)}</ul>` : html`<${Empty} title="No query yet.">Your queries are kept in this browser only.</${Empty}>`}</${Panel}>
      </div>
    </div></${Page}>`;
}

function Result({ result }) {
  const [view, setView] = useState("table");
  const pinned = result.pinned.map((p) => html` · <a href=${`/datasets/${path(p.dataset)}`}>${p.dataset} (${format.count(p.partitions, "partition")})</a>`);
  return html`<${Panel} title=${`${format.count(result.row_count, "row")}${result.truncated ? ", cut at the limit" : ""}`} actions=${html`<span class="muted">${format.duration(result.elapsed_ms / 1000)}${pinned}</span>
    <span class="pair"><button aria-pressed=${view === "table"} onClick=${() => setView("table")}>Table</button><button aria-pressed=${view === "plot"} onClick=${() => setView("plot")}>Plot</button></span>`}>
    ${view === "table" ? html`<${ResultTable} result=${result} height=${520} />` : html`<${Plot} result=${result} />`}</${Panel}>`;
}

function Plot({ result }) {
  const isNumeric = (i) => result.rows.some((row) => row[i] !== null && Number.isFinite(Number(row[i])));
  const isTime = (i) => /TIMESTAMP|DATE/.test(result.columns[i].type);
  const numeric = result.columns.map((_, i) => i).filter((i) => isNumeric(i) || isTime(i));
  const [x, setX] = useState(numeric[0] ?? 0);
  const [y, setY] = useState(numeric[1] ?? numeric[0] ?? 0);
  if (numeric.length < 1) return html`<${Empty} title="No column has numbers or times to plot." />`;
  const value = (row, i) => (row[i] === null ? null : isTime(i) ? Date.parse(row[i]) / 1000 : Number(row[i]));
  const points = result.rows.map((row) => [value(row, x), value(row, y)]).filter(([a]) => a !== null && Number.isFinite(a)).sort((a, b) => a[0] - b[0]);
  const choose = (label, at, set) => html`<label>${label}<select value=${at} onChange=${(e) => set(Number(e.target.value))}>${numeric.map((i) => html`<option value=${i}>${result.columns[i].name}</option>`)}</select></label>`;
  return html`<div class="panel-body actions">${choose("Across", x, setX)}${choose("Up", y, setY)}</div>
    <${Chart} key=${`${x}-${y}`} isTime=${isTime(x)} height=${320} data=${[points.map((p) => p[0]), points.map((p) => p[1])]} series=${[{ label: result.columns[y].name, colour: "accent", kind: points.length > 400 ? "line" : "points" }]} label=${`${result.columns[y].name} by ${result.columns[x].name}`} />`;
}
