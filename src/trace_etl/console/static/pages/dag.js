// One DAG: its graph with live state, its text, its versions, and its rollout.
import { useMemo, useState } from "../vendor/preact.js";
import { can, get, path, post } from "../lib/api.js";
import * as format from "../lib/format.js";
import { GraphView } from "../lib/graph.js";
import { useLive } from "../lib/live.js";
import { address, setParams } from "../lib/router.js";
import { ask, Command, Count, DatasetLink, Empty, Failure, Fields, html, Icon, JobLink, Loaded, Page, Panel, State, Table, Tabs, TaskLink, Time, toast } from "../lib/ui.js";

export function DagPage({ name }) {
  const { params } = address.value;
  const view = params.get("view") ?? "graph";
  const ofDag = (change) => change.dag === name && change.kind !== "dataset";
  const graph = useLive((signal) => get(`dags/${path(name)}/graph`, {}, signal), [name], { matches: (c) => c.kind !== "dataset" });
  const rollout = useLive((signal) => get(`dags/${path(name)}/rollout`, {}, signal).catch((error) => { if (error.status === 404) return null; throw error; }), [name], { matches: ofDag });
  const isBuilding = rollout.data?.state === "building";
  const actions = can("writer") && html`
    ${isBuilding && html`<button onClick=${() => promote(name, rollout.data)}>Promote</button>`}
    ${rollout.data?.previous_version && html`<button onClick=${() => rollback(name)}>Roll back</button>`}
    <button onClick=${() => pause(name, null)}>Pause all</button>`;
  return html`<${Page} title=${name} trail=${html`<a href="/dags">DAGs</a>`} actions=${actions}>
    ${isBuilding && html`<${Rollout} name=${name} rollout=${rollout.data} />`}
    <${Tabs} current=${view} href=${(key) => (key === "graph" ? `/dags/${path(name)}` : `/dags/${path(name)}?view=${key}`)} tabs=${[["graph", "Graph"], ["text", "YAML"], ["versions", "Versions"], ["rollout", "Rollout"]]} />
    ${view === "graph" && html`<${Loaded} state=${graph} rows=${10}>${(data) => html`<${GraphSection} name=${name} data=${data} />`}</${Loaded}>`}
    ${view === "text" && html`<${Text} name=${name} />`}
    ${view === "versions" && html`<${Versions} name=${name} />`}
    ${view === "rollout" && html`<${Loaded} state=${rollout}>${(data) => (data ? html`<${RolloutDetail} rollout=${data} />` : html`<${Panel}><${Empty} title="This DAG was never rolled out." /></${Panel}>`)}</${Loaded}>`}
  </${Page}>`;
}

// --- graph ----------------------------------------------------------------------------------------

const nodeState = (node) =>
  node.failed ? "failed" : node.paused_by ? "paused" : node.running ? "running" : node.queued ? "queued" : node.completed ? "completed" : "idle";
const STATE_TEXT = { failed: "failed", paused: "paused", running: "running", queued: "queued", completed: "done", idle: "no tasks yet" };

function GraphSection({ name, data }) {
  const { params } = address.value;
  const chosen = params.get("job");
  const [search, setSearch] = useState("");
  const id = (dag, job) => `${dag}/${job}`;
  const { nodes, edges } = useMemo(() => {
    const held = findHeldEdges(data);
    return {
      nodes: data.nodes.map((node) => ({
        id: id(node.dag, node.job), name: node.dag === name ? node.job : `${node.dag}.${node.job}`, foreign: node.dag !== name,
        sub: node.source_kind ? `${node.source_kind} source` : node.operator, state: nodeState(node), badge: badge(node),
        title: `${node.dag} ${node.job}: ${STATE_TEXT[nodeState(node)]}, ${node.running} running, ${node.queued} queued, ${node.failed} failed${node.paused_by ? `, paused by ${node.paused_by}` : ""}`,
      })),
      edges: mergeEdges(data, held, id),
    };
  }, [data]);
  const node = data.nodes.find((one) => one.job === chosen && one.dag === (params.get("dag") ?? name));
  const select = (key) => {
    const [dag, job] = [key.slice(0, key.indexOf("/")), key.slice(key.indexOf("/") + 1)];
    setParams({ job: job === chosen ? undefined : job, dag: dag === name || job === chosen ? undefined : dag });
  };
  return html`<div class=${node ? "columns graph-left" : ""}>
    <${Panel} title=${`${format.count(data.nodes.filter((one) => one.dag === name).length, "job")}`} actions=${html`<input type="search" aria-label="Find a job" placeholder="Find a job" value=${search} onInput=${(e) => setSearch(e.target.value)} />`}>
      <${GraphView} nodes=${nodes} edges=${edges} selected=${node && id(node.dag, node.job)} onSelect=${select} search=${search} />
      <div class="legend">${Object.entries(STATE_TEXT).map(([kind, text]) => html`<span><${Icon} kind=${kind} />${text}</span>`)}
        <span><svg width="26" height="8" aria-hidden="true"><path class="edge-sample" d="M0 4h26" stroke="var(--paused)" stroke-width="2.4" stroke-dasharray="7 4" /></svg>backpressure</span></div>
    </${Panel}>
    ${node && html`<${JobPanel} key=${id(node.dag, node.job)} dag=${node.dag} job=${node.job} pauses=${data.pauses} />`}
  </div>`;
}

function badge(node) {
  if (node.failed) return `${format.compact(node.failed)} failed`;
  if (node.running || node.queued) return `${format.compact(node.running)} / ${format.compact(node.queued)}`;
  return node.completed ? format.compact(node.completed) : "";
}

/** Several outputs between two jobs are one line. */
function mergeEdges(data, held, id) {
  const counts = new Map(data.nodes.map((node) => [id(node.dag, node.job), node]));
  const merged = new Map();
  for (const edge of data.edges) {
    const [from, to] = [id(edge.from_dag, edge.from_job), id(edge.to_dag, edge.to_job)];
    const key = `${from}>${to}`;
    const known = merged.get(key) ?? { from, to, titles: [], trigger: true };
    known.titles.push(edge.dataset ?? edge.output);
    known.trigger = known.trigger && !edge.reads;
    merged.set(key, known);
  }
  return [...merged.values()].map((edge) => ({ ...edge, title: edge.titles.join(", "), held: held.has(`${edge.from}>${edge.to}`), busy: (counts.get(edge.to)?.running ?? 0) > 0 }));
}

/** The edges on the way from a full queue up to the jobs that it pauses. */
export function findHeldEdges(data) {
  const [inputs, outputs] = [new Map(), new Map()];
  for (const edge of data.edges) {
    const [from, to] = [`${edge.from_dag}/${edge.from_job}`, `${edge.to_dag}/${edge.to_job}`];
    inputs.set(to, [...(inputs.get(to) ?? []), from]);
    outputs.set(from, [...(outputs.get(from) ?? []), to]);
  }
  const held = new Set();
  for (const pause of data.pauses.filter((one) => one.by_job)) {
    const above = follow(inputs, `${pause.by_dag}/${pause.by_job}`);
    const below = follow(outputs, `${pause.dag}/${pause.job}`);
    for (const to of above) for (const from of inputs.get(to) ?? []) if (below.has(from)) held.add(`${from}>${to}`);
  }
  return held;
}

/** A job and all that is reached from it. @param {Map<string, string[]>} next @param {string} start */
function follow(next, start) {
  const found = new Set([start]);
  for (const at of found) for (const one of next.get(at) ?? []) found.add(one); // a set also visits what is added meanwhile
  return found;
}

function JobPanel({ dag, job, pauses }) {
  const isPausedByUser = pauses.some((pause) => pause.dag === dag && pause.job === job && !pause.by_job);
  const state = useLive((signal) => get(`jobs/${path(dag, job)}`, {}, signal), [dag, job], { matches: (c) => c.dag === dag && c.job === job && c.kind !== "dataset" });
  const tasks = (status) => `/tasks?dag=${encodeURIComponent(dag)}&job=${encodeURIComponent(job)}&status=${status}`;
  return html`<${Panel} title=${job} actions=${can("writer") && state.data && (isPausedByUser
      ? html`<button onClick=${() => resume(dag, job)}>Resume</button>` : html`<button onClick=${() => pause(dag, job)}>Pause</button>`)}>
    <${Loaded} state=${state} rows=${8}>${(found) => html`
      ${found.reason && html`<div class="panel-body"><${Icon} kind=${found.paused_by ? "paused" : "warning"} /> ${found.reason}</div>`}
      <${Fields} items=${[
        ["Running", html`<${Count} value=${found.running} href=${tasks("Running")} />`], ["Queued", html`<${Count} value=${found.queued} href=${tasks("Queued")} />`],
        ["Failed", html`<${Count} value=${found.failed} href=${`${tasks("Failed")}&retrying=false`} />`], ["Retrying", html`<${Count} value=${found.retrying} href=${`${tasks("Failed")}&retrying=true`} />`],
        ["Operator", found.operator], ["Runtime", found.runtime], ["Runs", found.source_kind ? `${found.source_kind}${found.schedule ? ` ${found.schedule}` : ""}` : found.execution_strategy],
        ["Paused by", found.paused_by], ["Attempts", found.max_attempts > 10_000 ? "always on" : found.max_attempts], ["Timeout", format.duration(found.timeout_seconds)],
        ["Priority", found.priority], ["Concurrency", found.max_concurrency], ["Queue limit", found.max_queue_depth && format.number(found.max_queue_depth)],
        ["Oldest queued", found.oldest_queued_at && html`<${Time} at=${found.oldest_queued_at} />`],
        ["Reads", found.inputs.length > 0 && html`${found.inputs.map((input, i) => html`${i ? ", " : ""}<${JobLink} dag=${input.dag} job=${input.job} />.${input.output}`)}`],
        ["Writes", found.outputs.length > 0 && html`${found.outputs.map((output, i) => html`${i ? ", " : ""}${output.published ? html`<${DatasetLink} name=${output.published} />` : output.name}`)}`],
      ]} />
      ${found.last_failure && html`<div class="error-text" tabindex="0"><${TaskLink} id=${found.last_failure.task_id} /> ${found.last_failure.error_message}</div>`}
      ${Object.keys(found.config).length > 0 && html`<div class="code" tabindex="0"><pre>${found.config.sql ?? JSON.stringify(found.config, null, 2)}</pre></div>`}`}</${Loaded}>
  </${Panel}>`;
}

// --- text and versions ----------------------------------------------------------------------------

function Text({ name }) {
  const state = useLive((signal) => get(`dags/${path(name)}`, {}, signal), [name], { matches: (c) => c.kind === "deploy" && c.dag === name });
  return html`<${Panel} title="Deployed text" actions=${state.data && html`<span class="muted">deployed <${Time} at=${state.data.deployed_at} /></span>`}>
    <${Loaded} state=${state} rows=${12}>${(dag) => html`<${Code} text=${dag.text} />`}</${Loaded}></${Panel}>`;
}

const Code = ({ text }) => html`<div class="code" tabindex="0"><pre>${text.replace(/\n$/, "").split("\n").map((row, i) => html`<div class="line"><span>${i + 1}</span><span>${row || " "}</span></div>`)}</pre></div>`;

function Versions({ name }) {
  const { params } = address.value;
  const state = useLive((signal) => get(`dags/${path(name)}/versions`, { limit: 200 }, signal), [name], { matches: (c) => (c.kind === "deploy" || c.kind === "rollout") && c.dag === name });
  return html`<${Loaded} state=${state}>${({ items }) => {
    const current = items.find((item) => item.is_current)?.dag_version ?? items[0]?.dag_version;
    // At first, what the last deploy changed.
    const to = params.get("to") ?? (params.get("from") === current ? undefined : current) ?? items.find((item) => !item.is_current)?.dag_version;
    const from = params.get("from") ?? items.find((item) => item.dag_version !== to)?.dag_version;
    const choose = (side) => html`<select aria-label=${side} value=${side === "from" ? from : to} onChange=${(e) => setParams({ [side]: e.target.value })}>
      ${items.map((item) => html`<option value=${item.dag_version}>${format.short(item.dag_version)} · ${new Date(item.created_at).toLocaleString()}${item.is_current ? " · current" : ""}</option>`)}</select>`;
    return html`<${Panel} title="Compare two versions" actions=${html`${choose("from")} <span class="muted">to</span> ${choose("to")}`}>
      ${from && to ? html`<${Comparison} name=${name} from=${from} to=${to} current=${current} />` : html`<${Empty} title="There is one version only." command=${`trace plan dag.yaml`}>Deploy a changed file to compare it here.</${Empty}>`}
    </${Panel}>`;
  }}</${Loaded}>`;
}

function Comparison({ name, from, to, current }) {
  const read = (version, signal) => get(`dags/${path(name, "versions", version)}`, {}, signal);
  const state = useLive(async (signal) => {
    const [a, b] = await Promise.all([read(from, signal), read(to, signal)]);
    const plan = await post("plans", { text: b.text, from_version: from }, signal).catch((error) => ({ error }));
    return { a, b, plan };
  }, [name, from, to, current]);
  return html`<${Loaded} state=${state} rows=${8}>${({ a, b, plan }) => html`
    ${plan.error && html`<div class="panel-body"><${Failure} error=${plan.error} /></div>`}
    ${plan.plan && html`<div class="panel-body stack"><h3>${from === current ? "What deploying the second version would do now" : "What changes from the first version to the second one"}</h3><${Plan} plan=${plan.plan} /></div>`}
    <${Diff} before=${a.text} after=${b.text} />`}</${Loaded}>`;
}

function Plan({ plan }) {
  const jobs = plan.jobs.filter((job) => job.change !== "unchanged" || job.action !== "keep");
  return html`<p>${plan.builds ? `${format.count(plan.partitions, "partition")} are built again, by about ${format.count(plan.tasks, "task")}, before readers see them.` : "Nothing is built again."}</p>
    ${jobs.length > 0 && html`<ul>${jobs.map((job) => html`<li><strong>${job.name}</strong> ${job.change}: ${job.action}${job.because.length ? ` because of ${job.because.join(", ")}` : ""}</li>`)}</ul>`}
    ${plan.names.length > 0 && html`<ul>${plan.names.map((item) => html`<li>name <code>${item.name}</code>: ${item.before ?? "new"} → ${item.after ?? "removed"}</li>`)}</ul>`}`;
}

const CONTEXT = 3;

/** Changed lines with those around them. The others are counted. @param {[string, string][]} rows */
function shorten(rows) {
  const isNear = (at) => rows.slice(Math.max(0, at - CONTEXT), at + CONTEXT + 1).some(([sign]) => sign !== " ");
  const short = [];
  let hidden = 0;
  rows.forEach((row, at) => {
    if (!isNear(at)) return void (hidden += 1);
    if (hidden) short.push(["⋯", format.count(hidden, "line")]);
    hidden = 0;
    short.push(row);
  });
  return hidden ? [...short, ["⋯", format.count(hidden, "line")]] : short;
}

/** A line diff by the longest common subsequence; files are short. */
function Diff({ before, after }) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  const rows = a.length * b.length > 4_000_000 ? [...a.map((text) => ["-", text]), ...b.map((text) => ["+", text])] : diffLines(a, b);
  return html`<div class="code" tabindex="0"><pre>${shorten(rows).map(([sign, text]) => html`<div class=${`line ${sign === "+" ? "diff-add" : sign === "-" ? "diff-del" : ""}`}><span>${sign}</span><span>${text || " "}</span></div>`)}</pre></div>`;
}

function diffLines(a, b) {
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
  const rows = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { rows.push([" ", a[i]]); i++; j++; }
    else if (j >= b.length || (i < a.length && table[(i + 1) * width + j] >= table[i * width + j + 1])) rows.push(["-", a[i++]]);
    else rows.push(["+", b[j++]]);
  }
  return rows;
}

// --- rollout --------------------------------------------------------------------------------------

function Rollout({ name, rollout }) {
  const blocks = rollout.targets.reduce((sum, target) => sum + target.blocks, 0);
  const missing = rollout.targets.reduce((sum, target) => sum + target.missing_blocks, 0);
  const share = blocks ? (blocks - missing) / blocks : 0;
  return html`<div class="banner"><${State} status="building" text="Rolling out" /><div class="bar" style=${{ width: "160px", alignSelf: "center" }} role="img" aria-label=${`${Math.floor(share * 100)} % built`}><i style=${{ width: `${share * 100}%` }} /></div>
    <span>${blocks > 0 && html`<a href=${`/dags/${path(name)}?view=rollout`}>${format.number(blocks - missing)} of ${format.count(blocks, "block")}</a>`} ${rollout.reason ?? ""}</span></div>`;
}

const RolloutDetail = ({ rollout }) => html`<${Panel}>
    <${Fields} items=${[["State", html`<${State} status=${rollout.state} />`], ["Version", html`<span class="mono">${format.short(rollout.dag_version)}</span>`],
      ["Before", rollout.previous_version && html`<span class="mono">${format.short(rollout.previous_version)}</span>`], ["Started", html`<${Time} at=${rollout.started_at} />`],
      ["Ended", rollout.ended_at && html`<${Time} at=${rollout.ended_at} />`], ["Waits for", rollout.reason]]} />
    ${rollout.targets.length > 0 ? html`<${Table} label="Datasets of the rollout" rows=${rollout.targets} columns=${[
      { label: "Dataset", width: "minmax(120px, 1fr)", render: (t) => (t.name ? html`<${DatasetLink} name=${t.name} />` : `${t.job}.${t.output}`) },
      { label: "Built", width: "minmax(120px, 1fr)", render: (t) => html`<div class="bar"><i style=${{ width: `${t.blocks ? (100 * (t.blocks - t.missing_blocks)) / t.blocks : 100}%` }} /></div>` },
      { label: "Partitions", width: "110px", align: "right", render: (t) => (t.name ? html`<a class="num" href=${`/datasets/${path(t.name)}?version=${t.to_version}`}>${format.number(t.new_partitions)}</a> / <a class="num" href=${`/datasets/${path(t.name)}?version=${t.from_version}`}>${format.number(t.old_partitions)}</a>` : `${format.number(t.new_partitions)} / ${format.number(t.old_partitions)}`) },
      { label: "Missing blocks", width: "120px", align: "right", render: (t) => (t.name ? html`<${Count} value=${t.missing_blocks} href=${`/datasets/${path(t.name)}?version=${t.to_version}`} />` : format.number(t.missing_blocks)) },
    ]} />` : html`<${Empty} title="This rollout built no new generation.">Its jobs kept their data.</${Empty}>`}
    ${rollout.failures.length > 0 && html`<${Table} label="Failed tasks of the rollout" rows=${rollout.failures} href=${(f) => `/tasks/${f.task_id}`} columns=${[
      { label: "Failed task", width: "142px", render: (f) => html`<${TaskLink} id=${f.task_id} />` }, { label: "Job", width: "minmax(90px, 1fr)", render: (f) => f.job },
      { label: "Partition", width: "minmax(90px, 1fr)", render: (f) => f.partition_key }, { label: "Error", width: "minmax(160px, 2fr)", wide: true, render: (f) => f.error_message }]} />`}
  </${Panel}>`;

// --- actions --------------------------------------------------------------------------------------

const promote = (name, rollout) => ask({
  title: `Promote the new version of ${name}?`,
  body: html`<p>The new generations become current now, although ${format.count(rollout.targets.reduce((sum, t) => sum + t.missing_blocks, 0), "block")} of them are not built yet. Readers do not see these blocks until they are built.</p><${Command} text=${`trace promote ${name}`} />`,
  action: "Promote", danger: true,
  run: async () => { await post(`dags/${path(name)}/promote`); return "The new version is current."; },
});
/** Ask with what the API previews. */
async function rollback(name) {
  let preview;
  try {
    preview = await post(`dags/${path(name)}/rollback?dry_run=true`);
  } catch (error) {
    return toast(error.message, "failed");
  }
  const label = (d) => d.dataset ?? `${d.job}.${d.output}`;
  ask({
    title: `Roll ${name} back?`,
    body: html`<p>Version <code>${format.short(preview.dag_version)}</code> becomes current immediately, with its data. ${format.count(preview.canceled, "unfinished task")} of version <code>${format.short(preview.from_version)}</code> ${preview.canceled === 1 ? "is" : "are"} canceled, and ${format.count(preview.requeued, "task")} of the earlier version ${preview.requeued === 1 ? "runs" : "run"} again.</p>
      ${preview.datasets.length > 0 ? html`<p>Readers see the earlier data of:</p><ul>${preview.datasets.map((d) => html`<li>${label(d)}</li>`)}</ul>` : html`<p>Readers see the same data.</p>`}<${Command} text=${`trace rollback ${name}`} />`,
    action: "Roll back", danger: true,
    run: async () => `Version ${format.short((await post(`dags/${path(name)}/rollback`)).dag_version)} is current again.`,
  });
}
function pause(dag, job) {
  const body = { dag, job: job ?? undefined, reason: "" };
  ask({
    title: `Pause ${job ? `${dag}.${job}` : `all jobs of ${dag}`}?`,
    body: html`<p>No task is created or started until the pause is removed. Running tasks continue. Events wait and are not lost.</p>
      <label>Reason<input maxlength="500" placeholder="Shown to users who look at a paused job" onInput=${(event) => (body.reason = event.target.value)} /></label>`,
    action: "Pause",
    run: async () => `Paused ${format.count((await post("pauses", body)).jobs.length, "job")}.`,
  });
}
export const resume = (dag, job) => ask({
  title: `Resume ${job ? `${dag}.${job}` : dag}?`, body: html`<p>Waiting tasks start again, and deferred events create their tasks.</p>`, action: "Resume",
  run: async () => { const reply = await post("pauses/resume", { dag, job: job ?? undefined }); return reply.still_paused.length ? `Resumed; ${reply.still_paused[0].job} stays paused by ${reply.still_paused[0].by}.` : "Resumed."; },
});
