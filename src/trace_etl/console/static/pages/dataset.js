// One dataset: the partition map, partitions, columns, versions, lineage, rows and invalidations.
import { useMemo } from "../vendor/preact.js";
import { can, get, path, post, query } from "../lib/api.js";
import * as format from "../lib/format.js";
import { GraphView } from "../lib/graph.js";
import { useLive, useMore } from "../lib/live.js";
import { PartitionMap } from "../lib/map.js";
import { address, go, setParams } from "../lib/router.js";
import { ask, Count, DatasetLink, Empty, Fields, html, Icon, JobLink, Loaded, Page, Panel, Stat, State, Table, Tabs, Time } from "../lib/ui.js";

export function DatasetPage({ name }) {
  const { params } = address.value;
  const view = params.get("view") ?? "map";
  const version = (view === "map" && params.get("version")) || undefined;
  const state = useLive((signal) => get(`datasets/${path(name)}`, { limit: 200, dataset_version: version }, signal), [name, version], { matches: (c) => c.kind === "dataset" && c.dataset === name });
  const href = (key) => (key === "map" ? `/datasets/${path(name)}` : `/datasets/${path(name)}?view=${key}`);
  const gap = ([start, end]) => `/datasets/${path(name)}?at=${start}-${end}`;
  const actions = html`<a class="button" href=${`/query#${encodeURIComponent(`SELECT *\nFROM ${name}\nLIMIT 100`)}`}>Query</a>
    ${can("writer") && html`<button onClick=${() => invalidate(name, params.get("key"))}>Invalidate</button>`}`;
  return html`<${Page} title=${name} trail=${html`<a href="/datasets">Datasets</a>`} actions=${actions}>
    <${Loaded} state=${state} rows=${8}>${(dataset) => html`
      ${dataset.description && html`<p class="muted lead">${dataset.description}</p>`}
      <div class="stats">
        <${Stat} label="Rows" value=${format.number(dataset.row_count)} href=${href("rows")} />
        <${Stat} label="Partitions" value=${format.number(dataset.partitions)} href=${href("map")} />
        <${Stat} label="Size" value=${format.size(dataset.byte_count)} href="/operations/storage" />
        <${Stat} label="Gaps" value=${dataset.gaps.length} href=${dataset.gaps.length ? gap(dataset.gaps[0]) : href("map")} hint=${dataset.gaps.length ? html`first: <a href=${gap(dataset.gaps[0])}>${dataset.gaps[0][0]}–${dataset.gaps[0][1]}</a>` : "no block is missing"} />
        <${Stat} label="Versions" value=${dataset.generations.length} href=${href("versions")} />
        <${Stat} label="Updated" value=${html`<${Time} at=${dataset.updated_at} none="never" />`} href=${`/tasks?dag=${encodeURIComponent(dataset.dag)}&job=${encodeURIComponent(dataset.job)}`} />
      </div>
      <${Tabs} current=${view} href=${href} tabs=${[["map", "Partitions"], ["schema", "Columns", dataset.columns.length], ["versions", "Versions", dataset.generations.length], ["lineage", "Lineage"], ["rows", "Rows"], ["invalidations", "Invalidations"]]} />
      ${view === "map" && html`<${MapSection} dataset=${dataset} />`}
      ${view === "schema" && html`<${Schema} dataset=${dataset} />`}
      ${view === "versions" && html`<${Generations} dataset=${dataset} />`}
      ${view === "lineage" && html`<${Lineage} name=${name} dataset=${dataset} />`}
      ${view === "rows" && html`<${Rows} name=${name} />`}
      ${view === "invalidations" && html`<${Invalidations} name=${name} />`}`}</${Loaded}>
  </${Page}>`;
}

// --- partitions -----------------------------------------------------------------------------------

function MapSection({ dataset }) {
  const { params } = address.value;
  const key = params.get("key");
  const version = params.get("version") ?? undefined;
  return html`<${Panel} title="Partition map" actions=${html`<select aria-label="Version" value=${version ?? ""} onChange=${(e) => setParams({ version: e.target.value, key: undefined })}>
      <option value="">Version that readers see</option>${dataset.generations.map((g) => html`<option value=${g.dataset_version}>${g.generation_no} · ${g.state} · ${format.count(g.partitions, "partition")}</option>`)}</select>`}>
      <${PartitionMap} key=${`${version} ${params.get("at")}`} name=${dataset.name} version=${version} selected=${key} at=${params.get("at") ?? key} onPick=${(picked) => setParams({ key: picked })} />
    </${Panel}>
    ${key && html`<${PartitionPanel} key=${key + version} dataset=${dataset} version=${version} partition=${key} />`}
    <${PartitionTable} dataset=${dataset} version=${version} selected=${key} />`;
}

function PartitionPanel({ dataset, version, partition }) {
  const name = dataset.name;
  const state = useLive((signal) => get(`datasets/${path(name)}/lineage/${encodeURIComponent(partition)}`, { dataset_version: version }, signal), [name, version, partition], { matches: (c) => c.kind === "dataset" && c.dataset === name && c.partition_key === partition });
  return html`<${Panel} title=${html`Partition <span class="mono">${partition}</span>`} actions=${html`<button class="quiet" onClick=${() => setParams({ key: undefined })}>Close</button>`}>
    <${Loaded} state=${state}>${(found) => html`
      <${Fields} items=${[
        ["Written by", html`<a href=${`/tasks/${found.task_id}?attempt=${found.attempt}`}>attempt ${found.attempt} of <span class="mono">${format.short(found.task_id)}</span></a>`],
        ["Log", html`<a href=${`/tasks/${found.task_id}?attempt=${found.attempt}#log`}>Open the log</a>`],
        ["Made from", html`<a href="#inputs">${format.count(found.up.filter((p) => p.depth === 1).length, "partition")}</a>`],
        ["Read by", html`<a href="#outputs">${format.count(found.down.filter((p) => p.depth === 1).length, "partition")}</a>`],
      ]} />
      <div class="columns panel-body"><${Links} id="inputs" title="Inputs" items=${found.up} none="It was made from a source." /><${Links} id="outputs" title="Outputs made from it" items=${found.down} none="Nothing was made from it yet." /></div>`}</${Loaded}>
  </${Panel}>`;
}

const Links = ({ id, title, items, none }) => html`<div id=${id}><h3>${title}</h3>${items.length ? html`<${Table} label=${title} rows=${items.slice(0, 200)} columns=${[
  { label: "Dataset", width: "minmax(110px, 1fr)", render: (p) => (p.dataset ? html`<a href=${`/datasets/${path(p.dataset)}?key=${encodeURIComponent(p.partition_key)}`}>${p.dataset}</a>` : `${p.job}.${p.output}`) },
  { label: "Partition", width: "minmax(90px, 1fr)", render: (p) => html`<span class="mono">${p.partition_key === "*" ? "all" : p.partition_key}</span>` },
  { label: "Attempt", width: "minmax(90px, 1fr)", render: (p) => (p.task_id ? html`<a href=${`/tasks/${p.task_id}?attempt=${p.attempt}`} class="mono">${format.short(p.task_id)}</a>` : "–") },
  { label: "", width: "64px", render: (p) => (p.is_current ? "" : html`<span class="state-warning"><${Icon} kind="warning" /> old</span>`) }]} />` : html`<p class="muted">${none}</p>`}</div>`;

function PartitionTable({ dataset, version, selected }) {
  const more = useMore(version ?? dataset.dataset_version, dataset.next, async (after) => {
    const page = await get(`datasets/${path(dataset.name)}`, { limit: 200, after, dataset_version: version });
    return { items: page.partition_list, next: page.next };
  });
  const first = new Set(dataset.partition_list.map((p) => p.partition_key));
  const rows = [...dataset.partition_list, ...more.items.filter((p) => !first.has(p.partition_key))];
  const canQuery = !version && dataset.columns.some((column) => column.name === "block_number");
  if (!rows.length) return html`<${Panel}><${Empty} title="No partition is committed yet." command=${`trace backfill ${dataset.dag} ${dataset.job} --range 0-9999`}>A partition appears here when its task has completed.</${Empty}></${Panel}>`;
  return html`<${Panel} title="Partitions by block"><${Table} label="Partitions" rows=${rows} onEnd=${more.load} height=${420} selected=${(p) => p.partition_key === selected} columns=${[
    { label: "Partition", width: "minmax(120px, 1fr)", render: (p) => html`<a class="mono" href=${`?${query({ version, key: p.partition_key })}`}>${p.partition_key}</a>` },
    { label: "Rows", width: "100px", align: "right", render: (p) => (canQuery && p.start !== null ? html`<${Count} value=${p.row_count} href=${rowsOf(dataset.name, p)} />` : format.number(p.row_count)) },
    { label: "Size", width: "80px", align: "right", render: (p) => format.size(p.byte_count) },
    { label: "Attempt", width: "190px", minor: true, render: (p) => html`<a class="mono" href=${`/tasks/${p.task_id}?attempt=${p.attempt}`}>${format.short(p.task_id)} #${p.attempt}</a>` },
    { label: "Committed", width: "100px", align: "right", render: (p) => html`<${Time} at=${p.committed_at} />` },
  ]} /></${Panel}>`;
}

/** The query for the rows of a partition that readers see. */
const rowsOf = (name, { start, end }) => `/query#${encodeURIComponent(`SELECT *\nFROM ${name}\nWHERE block_number BETWEEN ${start} AND ${end}\nLIMIT 1000`)}`;

// --- the other sections ---------------------------------------------------------------------------

const Schema = ({ dataset }) => html`<${Panel}>${dataset.columns.length ? html`<${Table} label="Columns" rows=${dataset.columns} columns=${[
    { label: "Column", width: "minmax(140px, 1fr)", render: (c) => html`<span class="mono">${c.name}</span>` }, { label: "Type", width: "minmax(110px, 1fr)", render: (c) => html`<span class="mono muted">${c.type}</span>` },
    { label: "Meaning", width: "minmax(180px, 2.5fr)", wide: true, render: (c) => html`<span title=${c.comment}>${c.comment ?? ""}</span>` }]} />` : html`<${Empty} title="The columns are not known yet.">They are known after the first partition, or after a deploy with a check.</${Empty}>`}</${Panel}>
  <${Panel} title="About"><${Fields} items=${[["Written by", html`<${JobLink} dag=${dataset.dag} job=${dataset.job} />.${dataset.output}`], ["Mode", dataset.write_mode], ["Newest rows", dataset.hot], ["Read by", dataset.consumers.length ? dataset.consumers.map((c, i) => html`${i ? ", " : ""}<${JobLink} dag=${c.dag} job=${c.job} />`) : "no cursor consumer"], ["Readable for", dataset.read_roles?.join(", ") ?? "every role"], ["Id", html`<span class="mono">${dataset.dataset_uuid}</span>`]]} /></${Panel}>`;

const Generations = ({ dataset }) => html`<${Panel}><${Table} label="Versions" rows=${dataset.generations} columns=${[
  { label: "No.", width: "50px", align: "right", render: (g) => g.generation_no }, { label: "State", width: "110px", render: (g) => html`<${State} status=${g.state} />` },
  { label: "Partitions", width: "100px", align: "right", render: (g) => html`<a class="num" href=${`?version=${g.dataset_version}`}>${format.number(g.partitions)}</a>` }, { label: "Rows", width: "120px", align: "right", render: (g) => format.number(g.row_count) },
  { label: "Size", width: "90px", align: "right", render: (g) => format.size(g.byte_count) }, { label: "Created", width: "100px", align: "right", render: (g) => html`<${Time} at=${g.created_at} />` },
  { label: "Version", width: "minmax(150px, 1fr)", wide: true, render: (g) => html`<span class="mono muted">${g.dataset_version}</span>` }]} /></${Panel}>`;

function Lineage({ name, dataset }) {
  const { params } = address.value;
  const version = params.get("version") ?? "";
  const state = useLive((signal) => get(`datasets/${path(name)}/lineage`, { dataset_version: version }, signal), [name, version], { matches: (c) => c.kind === "deploy" });
  const choice = html`<select aria-label="As of version" value=${version} onChange=${(e) => setParams({ version: e.target.value })}><option value="">As deployed now</option>
    ${dataset.generations.map((g) => html`<option value=${g.dataset_version}>As version ${g.generation_no} was made (${g.state})</option>`)}</select>`;
  return html`<${Panel} title="Lineage" actions=${choice}><${Loaded} state=${state} rows=${8}>${(data) => html`<${LineageGraph} name=${name} data=${data} dataset=${dataset} />`}</${Loaded}></${Panel}>`;
}

function LineageGraph({ name, data, dataset }) {
  const { nodes, edges } = useMemo(() => {
    const label = (d) => d.dataset ?? `${d.job}.${d.output}`;
    const all = new Map(/** @type {[string, any][]} */ ([[data.dataset_uuid, { id: data.dataset_uuid, name, sub: `${dataset.dag} / ${dataset.job}`, state: "completed", title: `${name}, this dataset` }]]));
    for (const d of [...data.up, ...data.down]) all.set(d.dataset_uuid, { id: d.dataset_uuid, name: label(d), dataset: d.dataset, sub: `${d.dag} / ${d.job}`, state: "idle", foreign: !d.dataset, title: `${label(d)}, written by ${d.dag} ${d.job}` });
    return { nodes: [...all.values()], edges: (data.links ?? []).filter((l) => all.has(l.from_uuid) && all.has(l.to_uuid)).map((l) => ({ from: l.from_uuid, to: l.to_uuid, title: "" })) };
  }, [data]);
  if (nodes.length === 1) return html`<${Empty} title="This dataset has no input and no reader." />`;
  const open = (id) => { const node = nodes.find((one) => one.id === id); if (node?.dataset) go(`/datasets/${path(node.dataset)}?view=lineage`); };
  return html`<${GraphView} nodes=${nodes} edges=${edges} selected=${data.dataset_uuid} onSelect=${open} search="" />`;
}

function Rows({ name }) {
  const state = useLive((signal) => post("query", { sql: `SELECT * FROM "${name}" LIMIT 100` }, signal), [name]);
  return html`<${Panel} title="The first 100 rows" actions=${html`<a href=${`/query#${encodeURIComponent(`SELECT *\nFROM ${name}\nLIMIT 100`)}`}>Open in the editor</a>`}><${Loaded} state=${state} rows=${8}>${(result) => html`<${ResultTable} result=${result} height=${480} />`}</${Loaded}></${Panel}>`;
}

export function ResultTable({ result, height }) {
  if (!result.rows.length) return html`<${Empty} title="The query returned no rows." />`;
  const isNumber = (type) => /INT|DOUBLE|FLOAT|DECIMAL/.test(type);
  return html`<${Table} label="Result" isGrid height=${height} rows=${result.rows} columns=${result.columns.map((column, i) => ({
    label: html`<span title=${column.type}>${column.name}</span>`, width: "minmax(120px, 1fr)", align: isNumber(column.type) ? "right" : "",
    render: (row) => (row[i] === null ? html`<span class="muted">null</span>` : html`<span class="mono" title=${format.cell(row[i])}>${format.cell(row[i])}</span>`),
  }))} />`;
}

function Invalidations({ name }) {
  const state = useLive((signal) => get("invalidations", { dataset: name, limit: 500 }, signal), [name], { matches: (c) => c.kind === "task" || c.kind === "dataset" });
  return html`<${Panel}><${Loaded} state=${state}>${({ items }) => (items.length ? html`<${InvalidationTable} items=${items} />` : html`<${Empty} title="No part of this dataset was invalidated." command=${`trace invalidate ${name} --range 0-99 --reason "wrong rows"`}>An invalidation marks blocks as wrong and rebuilds everything made from them.</${Empty}>`)}</${Loaded}></${Panel}>`;
}

export const InvalidationTable = ({ items }) => html`<${Table} label="Invalidations" rows=${items} columns=${[
  { label: "Dataset", width: "minmax(110px, 1fr)", render: (i) => (i.dataset ? html`<${DatasetLink} name=${i.dataset} />` : `${i.job}.${i.output}`) },
  { label: "Blocks", width: "minmax(100px, 1fr)", render: (i) => html`<span class="mono">${i.partition_key ?? `${i.start}–${i.end}`}</span>` },
  { label: "Reason", width: "minmax(150px, 2fr)", wide: true, render: (i) => html`${i.is_reorganisation && html`<span class="tag">reorganised</span> `}<span title=${i.reason}>${i.reason || "–"}</span>` },
  { label: "By", width: "minmax(80px, 1fr)", render: (i) => i.made_by }, { label: "Rebuilt", width: "90px", align: "right", render: (i) => (i.routed_at ? html`<a class=${i.tasks ? "num" : "num muted"} href=${`/tasks?invalidation_id=${i.invalidation_id}`}>${format.number(i.processed)} / ${format.number(i.tasks)}</a>` : "waiting") },
  { label: "When", width: "90px", align: "right", render: (i) => html`<${Time} at=${i.made_at} />` }]} />`;

function invalidate(name, key) {
  const range = /^(\d+)-(\d+)$/.exec(key ?? "");
  const form = { start: range?.[1] ?? "", end: range?.[2] ?? "", reason: "", rebuild: true };
  const set = (field) => (event) => (form[field] = event.target.type === "checkbox" ? event.target.checked : event.target.value);
  ask({
    title: `Invalidate a range of ${name}?`,
    body: html`<p>The blocks are marked as wrong, and everything made from them is built again.</p>
      <div class="split"><label>First block<input inputmode="numeric" defaultValue=${form.start} onInput=${set("start")} required /></label><label>Last block<input inputmode="numeric" defaultValue=${form.end} onInput=${set("end")} required /></label></div>
      <label>Reason<input onInput=${set("reason")} maxlength="500" required /></label><label class="check"><input type="checkbox" defaultChecked onChange=${set("rebuild")} />Rebuild these blocks of ${name} first</label>`,
    action: "Invalidate", danger: true,
    run: async () => {
      const reply = await post(`datasets/${path(name)}/invalidations`, { start: Number(form.start), end: Number(form.end), reason: form.reason, rebuild: form.rebuild });
      return reply.rebuilding ? `${format.count(reply.rebuilding, "task")} rebuild the blocks.` : "The blocks are invalid; their consumers run again.";
    },
  });
}
