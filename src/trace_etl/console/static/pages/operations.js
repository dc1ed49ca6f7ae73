// Backfills, pauses, side effects, batches, invalidations, storage, users, keys and runtimes.
import { useState } from "../vendor/preact.js";
import { can, get, getAll, path, post, query } from "../lib/api.js";
import * as format from "../lib/format.js";
import { useLive, useMore } from "../lib/live.js";
import { address, go, setParams } from "../lib/router.js";
import { ask, Command, Count, DatasetLink, Empty, Failure, Fields, html, JobLink, Loaded, Page, Panel, Stat, State, Table, Tabs, TaskLink, Time } from "../lib/ui.js";
import { InvalidationTable } from "./dataset.js";
import { resume } from "./dag.js";

const tasksOf = (filters) => `/tasks?${query(filters)}`;

const SECTIONS = {
  backfills: ["Backfills", Backfills], pauses: ["Pauses and pressure", Pauses], outbox: ["Outbox", Outbox], batches: ["Batches", Batches],
  invalidations: ["Invalidations", AllInvalidations], checks: ["Checks", Checks], events: ["Events", Events], notifications: ["Notifications", Notifications], storage: ["Storage", Storage], runtimes: ["Runtimes", Runtimes], users: ["Users", Users], keys: ["Keys", Keys],
};

export function OperationsPage({ section }) {
  const [, Section] = SECTIONS[section] ?? SECTIONS.backfills;
  const tabs = Object.entries(SECTIONS).filter(([key]) => key !== "users" || can("admin")).map(([key, [label]]) => [key, label]);
  return html`<${Page} title="Operations"><${Tabs} current=${section} href=${(key) => `/operations/${key}`} tabs=${tabs} /><${Section} /></${Page}>`;
}

// --- backfills ------------------------------------------------------------------------------------

function Backfills() {
  const id = address.value.params.get("id");
  const state = useLive((signal) => get("backfills", { limit: 200 }, signal), [], { matches: (c) => c.kind === "task", every: 5000 });
  return html`${can("writer") && html`<${BackfillForm} onStarted=${state.reload} />`}
    ${id && html`<${Chunks} key=${id} id=${id} />`}
    <${Panel} title="Backfills"><${Loaded} state=${state}>${({ items }) => items.length ? html`<${Table} label="Backfills" rows=${items} selected=${(b) => b.backfill_id === id} columns=${[
      { label: "State", width: "110px", render: (b) => html`<${State} status=${b.state} text=${b.paused_by ? "paused" : b.state} />` },
      { label: "Job", width: "minmax(140px, 1.2fr)", render: (b) => html`<${JobLink} dag=${b.dag} job=${b.job} />` },
      { label: "Blocks", width: "minmax(120px, 1fr)", render: (b) => html`<a class="mono" href=${`/operations/backfills?id=${b.backfill_id}`}>${b.start}–${b.end}</a>` },
      { label: "Progress", width: "minmax(130px, 1fr)", wide: true, render: (b) => html`<${Progress} backfill=${b} />` },
      { label: "Chunks", width: "110px", align: "right", minor: true, render: (b) => html`<a class="num" href=${`/operations/backfills?id=${b.backfill_id}`}>${format.number(b.completed + b.skipped)} / ${format.number(b.pending + b.created + b.completed + b.failed + b.canceled + b.skipped)}</a>` },
      { label: "Left", width: "90px", align: "right", minor: true, render: (b) => (b.state === "running" && b.seconds_left !== null ? format.duration(b.seconds_left) : "–") },
      { label: "Started", width: "90px", align: "right", render: (b) => html`<${Time} at=${b.started_at} />` },
      ...(can("writer") ? [{ label: "", width: "80px", align: "right", render: (b) => (b.state === "running" ? html`<button onClick=${() => cancelBackfill(b)}>Cancel</button>` : b.failed + b.canceled ? html`<button onClick=${() => resumeBackfill(b)}>Resume</button>` : "") }] : []),
    ]} />` : html`<${Empty} title="No backfill was started." command="trace backfill DAG JOB --range 0-99999">A backfill builds a range of blocks of one job, with low priority.</${Empty}>`}</${Loaded}></${Panel}>`;
}

function Progress({ backfill: b }) {
  const all = b.blocks_done + b.blocks_left;
  const chunks = b.pending + b.created + b.completed + b.failed + b.canceled + b.skipped || 1;
  return html`<div class="bar" role="img" aria-label=${`${format.number(b.blocks_done)} of ${format.number(all)} blocks`} title=${`${format.number(b.blocks_done)} of ${format.number(all)} blocks, ${format.number(Math.round(b.blocks_per_second))} per second`}>
    <i style=${{ width: `${(100 * (b.completed + b.skipped)) / chunks}%` }} /><i class="failed" style=${{ width: `${(100 * b.failed) / chunks}%` }} /></div>`;
}

function BackfillForm({ onStarted }) {
  const [form, setForm] = useState({ dag: "", job: "", start: "", end: "", chunk: "", force: false });
  const [preview, setPreview] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const jobs = useLive(() => getAll("jobs"), [], { matches: (c) => c.kind === "deploy" });
  const possible = (jobs.data ?? []).filter((job) => job.activation === "reactive");
  const set = (field) => (event) => { setForm({ ...form, [field]: event.target.type === "checkbox" ? event.target.checked : event.target.value }); setPreview(null); };
  const body = () => ({ dag: form.dag, job: form.job, start: Number(form.start), end: Number(form.end), chunk: form.chunk ? Number(form.chunk) : undefined, force: form.force });
  const run = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      if (!preview) return setPreview(await post("backfills/preview", body()));
      const started = await post("backfills", body());
      setPreview(null);
      onStarted();
      go(`/operations/backfills?id=${started.backfill_id}`);
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Panel} title="Build a range"><form class="panel-body stack" onSubmit=${run}>
    <div class="filters">
      <label>Job<select required value=${form.dag ? `${form.dag}/${form.job}` : ""} onChange=${(e) => { const [dag, ...job] = e.target.value.split("/"); setForm({ ...form, dag, job: job.join("/") }); setPreview(null); }}>
        <option value="">Choose …</option>${possible.map((job) => html`<option value=${`${job.dag}/${job.job}`}>${job.dag} / ${job.job}</option>`)}</select></label>
      <label>First block<input required inputmode="numeric" pattern="[0-9]+" value=${form.start} onInput=${set("start")} /></label>
      <label>Last block<input required inputmode="numeric" pattern="[0-9]+" value=${form.end} onInput=${set("end")} /></label>
      <label>Blocks per task<input inputmode="numeric" pattern="[0-9]*" placeholder="As upstream" value=${form.chunk} onInput=${set("chunk")} /></label>
      <label class="check"><input type="checkbox" checked=${form.force} onChange=${set("force")} />Rebuild existing partitions</label>
      <button class=${preview ? "primary" : ""}>${preview ? `Start ${format.count(preview.build + preview.rebuild, "task")}` : "Preview"}</button>
    </div>
    <${Failure} error=${error} />
    ${preview && html`<${Fields} items=${[["Build", format.count(preview.build, "chunk")], ["Rebuild", format.count(preview.rebuild, "chunk")], ["Already there", format.count(preview.there, "chunk")], ["Without input", format.count(preview.no_input, "chunk")],
      ["Blocks", format.number(preview.blocks)], ["Expected rows", preview.rows === null ? "unknown" : format.number(preview.rows)], ["Fed by", preview.fed_by], ["Blocks per task", format.number(preview.chunk)]]} />`}
  </form></${Panel}>`;
}

function Chunks({ id }) {
  const state = useLive((signal) => get(`backfills/${path(id)}/chunks`, { limit: 1000 }, signal), [id], { matches: (c) => c.kind === "task" });
  return html`<${Panel} title=${html`Chunks of <span class="mono">${format.short(id)}</span>`} actions=${html`<a href="/operations/backfills">Close</a>`}><${Loaded} state=${state}>${({ items }) => html`<${Table} label="Chunks" rows=${items} height=${360} columns=${[
    { label: "State", width: "110px", render: (c) => html`<${State} status=${c.state} />` }, { label: "Blocks", width: "minmax(120px, 1fr)", render: (c) => html`<span class="mono">${c.start}–${c.end}</span>` },
    { label: "What", width: "90px", render: (c) => c.action }, { label: "Task", width: "142px", render: (c) => (c.task_id ? html`<${TaskLink} id=${c.task_id} />` : "–") }, { label: "Rows", width: "90px", align: "right", render: (c) => format.number(c.rows) },
    { label: "Error", width: "minmax(150px, 2fr)", wide: true, render: (c) => html`<span class="state-failed" title=${c.error_message}>${c.error_message ?? ""}</span>` }]} />`}</${Loaded}></${Panel}>`;
}

const cancelBackfill = (b) => ask({ title: "Cancel this backfill?", body: html`<p>${format.count(b.pending + b.created, "chunk")} of <strong>${b.dag}.${b.job}</strong> are not done. Waiting tasks are canceled, running ones are asked to stop. Resume continues later.</p>`, action: "Cancel the backfill", danger: true,
  run: async () => `${format.count((await post(`backfills/${b.backfill_id}/cancel`)).canceled_tasks, "task")} canceled.` });
const resumeBackfill = (b) => ask({ title: "Resume this backfill?", body: html`<p>${format.count(b.failed + b.canceled, "chunk")} that failed or were canceled run again.</p>`, action: "Resume",
  run: async () => `${format.count((await post(`backfills/${b.backfill_id}/resume`)).chunks, "chunk")} run again.` });

// --- pauses and pressure --------------------------------------------------------------------------

function Pauses() {
  const state = useLive(async (signal) => { const [pauses, pressure] = await Promise.all([get("pauses", { limit: 1000 }, signal), get("pressure", {}, signal)]); return { pauses: pauses.items, pressure }; }, [], { matches: (c) => c.kind === "pause" || c.kind === "task", every: 10_000 });
  return html`<${Loaded} state=${state}>${({ pauses, pressure }) => html`
    <${Panel} title="Pauses">${pauses.length ? html`<${Table} label="Pauses" rows=${pauses} columns=${[
      { label: "Job", width: "minmax(150px, 1.2fr)", render: (p) => html`<${JobLink} dag=${p.dag} job=${p.job} />` }, { label: "Holds", width: "100px", render: (p) => html`<${State} status="paused" text=${p.tier === "bulk" ? "bulk tasks" : "all tasks"} />` },
      { label: "By", width: "minmax(120px, 1fr)", render: (p) => (p.by_job ? html`queue of <${JobLink} dag=${p.by_dag} job=${p.by_job} />` : p.by) }, { label: "Reason", width: "minmax(150px, 2fr)", wide: true, render: (p) => p.reason || "–" },
      { label: "Since", width: "90px", align: "right", render: (p) => html`<${Time} at=${p.since} />` },
      ...(can("writer") ? [{ label: "", width: "90px", align: "right", render: (p) => (p.by_job ? "" : html`<button onClick=${() => resume(p.dag, p.job)}>Resume</button>`) }] : [])]} />`
      : html`<${Empty} title="Nothing is paused." command="trace pause DAG JOB --reason maintenance">Users pause jobs; a queue above its limit pauses the jobs upstream.</${Empty}>`}
      ${pressure.deferred_events > 0 && html`<div class="table-foot"><a href="/operations/events?deferred=true">${format.count(pressure.deferred_events, "event")}</a> wait until a paused job resumes</div>`}</${Panel}>
    <div class="columns"><${Panel} title="Queues with limits">${pressure.queues.length ? html`<${Table} label="Queues with limits" rows=${pressure.queues} columns=${[
      { label: "Job", width: "minmax(140px, 1fr)", render: (q) => html`<${JobLink} dag=${q.dag} job=${q.job} />` }, { label: "Queued", width: "80px", align: "right", render: (q) => html`<${Count} value=${q.normal + q.bulk} href=${tasksOf({ dag: q.dag, job: q.job, status: "Queued" })} />` },
      { label: "Limit", width: "80px", align: "right", render: (q) => (q.max_queue_depth !== null ? format.number(q.max_queue_depth) : format.duration(q.max_queue_age)) },
      { label: "Pushes back", width: "minmax(100px, 1fr)", render: (q) => (q.sheds ? html`<${State} status="paused" text=${`${q.pausing} jobs, ${q.sheds}`} />` : html`<span class="muted">no</span>`) }]} />` : html`<${Empty} title="No job limits its queue."><code>max_queue_depth</code> in a DAG file limits how many tasks may wait.</${Empty}>`}</${Panel}>
    <${Panel} title="Operators">${pressure.operators.length ? html`<${Table} label="Operators" rows=${pressure.operators} columns=${[{ label: "Operator", width: "minmax(120px, 1fr)", render: (o) => html`<a href=${`/tasks?operator=${encodeURIComponent(o.operator)}`}>${o.operator}</a>` }, { label: "Running", width: "80px", align: "right", render: (o) => html`<${Count} value=${o.running} href=${tasksOf({ operator: o.operator, status: "Running" })} />` }, { label: "Queued", width: "80px", align: "right", render: (o) => html`<${Count} value=${o.queued} href=${tasksOf({ operator: o.operator, status: "Queued" })} />` }, { label: "Cap", width: "70px", align: "right", render: (o) => o.cap ?? "–" }]} />` : html`<${Empty} title="No task waits or runs." />`}</${Panel}></div>`}</${Loaded}>`;
}

// --- side effects and batches ---------------------------------------------------------------------

function Outbox() {
  const state = useLive((signal) => get("outbox", { limit: 500 }, signal), [], { every: 5000 });
  const failed = (state.data?.items ?? []).filter((item) => item.failed_at).length;
  return html`<${Panel} title="Side effects that wait or failed" actions=${can("writer") && failed > 0 && html`<button onClick=${() => ask({ title: `Replay ${format.count(failed, "side effect")}?`, body: html`<p>Each is tried again now. Receivers recognise repetitions.</p>`, action: "Replay", run: async () => `${format.number((await post("outbox/replay")).replayed)} are tried again.` })}>Replay failed</button>`}>
    <${Loaded} state=${state}>${({ items }) => items.length ? html`<${Table} label="Outbox" rows=${items} columns=${[
      { label: "State", width: "100px", render: (i) => html`<${State} status=${i.failed_at ? "failed" : "pending"} />` }, { label: "Kind", width: "minmax(110px, 1fr)", render: (i) => i.kind }, { label: "Target", width: "minmax(90px, 1fr)", render: (i) => i.target },
      { label: "Tries", width: "60px", align: "right", render: (i) => i.tries }, { label: "Error", width: "minmax(160px, 2fr)", wide: true, render: (i) => html`<span title=${i.last_error}>${i.last_error ?? ""}</span>` }, { label: "Created", width: "90px", align: "right", render: (i) => html`<${Time} at=${i.created_at} />` }]} />`
      : html`<${Empty} title="The outbox is empty.">Wake-ups, routed events and messages pass through it. What fails permanently stays here until it is replayed.</${Empty}>`}</${Loaded}></${Panel}>`;
}

function Batches() {
  const state = useLive((signal) => get("batches", { limit: 500 }, signal), [], { every: 10_000 });
  const act = (batch, verb, title, text) => ask({ title, body: html`<p>${text}</p>`, action: title.replace("?", ""), danger: verb === "drop", run: async () => { await post(`batches/${batch.publish_id}/${verb}`); state.reload(); return "Done."; } });
  return html`<${Panel} title="Batches of buffered datasets"><${Loaded} state=${state}>${({ items }) => items.length ? html`<${Table} label="Batches" rows=${items} columns=${[
    { label: "State", width: "100px", render: (b) => html`<${State} status=${b.state} />` }, { label: "Dataset", width: "minmax(110px, 1fr)", render: (b) => html`<${DatasetLink} name=${b.dataset} />` }, { label: "Task", width: "142px", render: (b) => html`<${TaskLink} id=${b.task_id} />` },
    { label: "Rows", width: "80px", align: "right", render: (b) => format.number(b.row_count ?? b.record_count) }, { label: "Error", width: "minmax(150px, 2fr)", wide: true, render: (b) => html`<span class="state-failed" title=${b.error_message}>${b.error_message ?? ""}</span>` }, { label: "Accepted", width: "90px", align: "right", render: (b) => html`<${Time} at=${b.accepted_at} />` },
    ...(can("writer") ? [{ label: "", width: "140px", align: "right", render: (b) => b.state === "failed" && html`<button onClick=${() => act(b, "retry", "Retry the batch?", "It is delivered to the sink again.")}>Retry</button> <button onClick=${() => act(b, "drop", "Drop the batch?", "Its rows will never be written, and its file is deleted.")}>Drop</button>` }] : [])]} />`
    : html`<${Empty} title="No batch was published.">Tasks publish batches to buffered datasets. One that cannot be written is dead-lettered here.</${Empty}>`}</${Loaded}></${Panel}>`;
}

function AllInvalidations() {
  const only = address.value.params.get("reorganisations") === "true";
  const state = useLive((signal) => get("invalidations", { limit: 500, is_reorganisation: only || undefined }, signal), [only], { every: 10_000 });
  return html`<${Choice} name="Cause" parameter="reorganisations" options=${[["", "Everything"], ["true", "Reorganisations"]]} /><${Panel}><${Loaded} state=${state}>${({ items }) => (items.length ? html`<${InvalidationTable} items=${items} />` : html`<${Empty} title="No data was invalidated.">Reorganisations of followed chains and reported defects appear here.</${Empty}>`)}</${Loaded}></${Panel}>`;
}

/** A filter in the address. */
const Choice = ({ name, parameter, options }) => html`<div class="filters"><label>${name}<select value=${address.value.params.get(parameter) ?? ""} onChange=${(e) => setParams({ [parameter]: e.target.value })}>
  ${options.map(([value, label]) => html`<option value=${value}>${label}</option>`)}</select></label></div>`;

// --- checks, events, notifications ----------------------------------------------------------------

const CHECK_STATES = { passed: "completed", accepted: "completed", warned: "warning", blocked: "failed", holding: "paused" };

function Checks() {
  const all = address.value.params.get("results") === "all";
  const state = useLive((signal) => get("checks", { limit: 500, failed: !all }, signal), [all], { matches: (c) => c.kind === "task", every: 10_000 });
  return html`<${Choice} name="Results" parameter="results" options=${[["", "Failed"], ["all", "All"]]} /><${Panel}><${Loaded} state=${state}>${({ items }) => items.length ? html`<${Table} label="Results of data checks" rows=${items} columns=${[
      { label: "State", width: "100px", render: (c) => html`<${State} status=${CHECK_STATES[c.state]} text=${c.state} />` },
      { label: "Dataset", width: "minmax(110px, 1fr)", render: (c) => (c.dataset ? html`<a href=${`/datasets/${path(c.dataset)}?key=${encodeURIComponent(c.partition_key)}`}>${c.dataset}</a>` : html`<${JobLink} dag=${c.dag} job=${c.job} />.${c.output}`) },
      { label: "Partition", width: "minmax(100px, 1fr)", render: (c) => html`<span class="mono">${c.partition_key}</span>` },
      { label: "Check", width: "minmax(90px, 1fr)", render: (c) => c.check },
      { label: "Failing rows", width: "130px", align: "right", render: (c) => html`<a class="num" href=${`/tasks/${c.task_id}?attempt=${c.attempt}`}>${format.number(c.failing_rows)} / ${format.number(c.checked_rows)}</a>` },
      { label: "Message", width: "minmax(150px, 2fr)", wide: true, render: (c) => html`<span title=${c.message}>${c.message}</span>` },
      { label: "Checked", width: "90px", align: "right", render: (c) => html`<${Time} at=${c.checked_at} />` }]} />
      ${items.some((c) => c.state === "holding") && html`<div class="table-foot actions">Accept the rows that consumers wait for, or rebuild them: <${Command} text="trace accept --help" /></div>`}`
    : html`<${Empty} title=${all ? "No check has run." : "No check failed."}>Checks of a DAG file test the rows of a partition before they are committed.</${Empty}>`}</${Loaded}></${Panel}>`;
}

const EVENT_FILTERS = { "": {}, waiting: { routed: false }, deferred: { deferred: true } };

function Events() {
  const wanted = address.value.params.get("deferred") === "true" ? "deferred" : (address.value.params.get("show") ?? "");
  const read = (after, signal) => get("events", { limit: 200, ...EVENT_FILTERS[wanted], after }, signal);
  const state = useLive((signal) => read(undefined, signal), [wanted], { matches: (c) => c.kind !== "pause", every: 10_000 });
  const more = useMore(wanted, state.data?.next, (after) => read(after, undefined));
  const seen = new Set(state.data?.items.map((event) => event.event_id));
  const rows = [...(state.data?.items ?? []), ...more.items.filter((event) => !seen.has(event.event_id))];
  return html`<div class="filters"><label>Events<select value=${wanted} onChange=${(e) => setParams({ show: e.target.value, deferred: undefined })}><option value="">All, newest first</option><option value="waiting">Not routed</option><option value="deferred">For paused jobs</option></select></label></div>
    <${Panel}><${Loaded} state=${state}>${() => rows.length ? html`<${Table} label="Events" rows=${rows} onEnd=${more.load} height=${Math.max(360, innerHeight - 260)} columns=${[
      { label: "Output", width: "minmax(140px, 1.4fr)", wide: true, render: (e) => html`<${JobLink} dag=${e.dag} job=${e.job} />.${e.output}` },
      { label: "What", width: "minmax(120px, 1fr)", render: (e) => html`<span class="mono">${e.partition_key ?? (e.cursor !== null ? `cursor ${e.cursor}` : "all")}</span>` },
      { label: "Attempt", width: "190px", render: (e) => html`<a class="mono" href=${`/tasks/${e.producer_task_id}?attempt=${e.attempt}`}>${format.short(e.producer_task_id)} #${e.attempt}</a>` },
      { label: "Accepted", width: "100px", align: "right", render: (e) => html`<${Time} at=${e.accepted_at} />` },
      { label: "Routed", width: "100px", align: "right", render: (e) => html`<${Time} at=${e.routed_at} none="not yet" />` }]} />`
    : html`<${Empty} title=${wanted ? "No event waits." : "No event was accepted."} command="trace trigger DAG JOB --range 0-9999">An event says that an output changed. Routing it creates the tasks of the jobs that read the output.</${Empty}>`}</${Loaded}></${Panel}>`;
}

function Notifications() {
  const state = useLive((signal) => get("notifications", { limit: 500 }, signal), [], { every: 10_000 });
  return html`<${Panel}><${Loaded} state=${state}>${({ items }) => items.length ? html`<${Table} label="Notifications" rows=${items} columns=${[
      { label: "State", width: "100px", render: (n) => html`<${State} status=${n.failed_at ? "failed" : n.sent_at ? "completed" : "pending"} text=${n.failed_at ? "failed" : n.sent_at ? "sent" : "waiting"} />` },
      { label: "Rule", width: "minmax(130px, 1fr)", render: (n) => html`<${JobLink} dag=${n.dag} /> / ${n.rule}` }, { label: "Event", width: "110px", render: (n) => n.event },
      { label: "To", width: "minmax(120px, 1.4fr)", wide: true, render: (n) => html`<span class="mono" title=${n.url}>${n.url}</span>` },
      { label: "Error", width: "minmax(120px, 1.4fr)", wide: true, render: (n) => html`<span class="state-failed" title=${n.last_error}>${n.last_error ?? ""}</span>` },
      { label: "Tries", width: "50px", align: "right", render: (n) => n.tries }, { label: "Created", width: "90px", align: "right", render: (n) => html`<${Time} at=${n.created_at} />` }]} />`
    : html`<${Empty} title="No notification was sent.">Rules under <code>notify</code> in a DAG file send failures, late data, gaps and reorganisations to a webhook.</${Empty}>`}</${Loaded}></${Panel}>`;
}

// --- storage, runtimes, users, keys ---------------------------------------------------------------

/** Prefixes that nothing uses, those that are deleted first at the top. */
function Unused({ due }) {
  const state = useLive((signal) => get("storage/unused", { due, limit: 500 }, signal), [due]);
  return html`<${Panel} title=${due ? "Due for deletion" : "Unused"} actions=${html`<a href="/operations/storage">Close</a>`}><${Loaded} state=${state}>${({ items }) => items.length ? html`<${Table} label="Unused storage" rows=${items} columns=${[
    { label: "Prefix", width: "minmax(200px, 2fr)", wide: true, render: (u) => html`<span class="mono" title=${u.key}>${u.key}</span>` }, { label: "Dataset", width: "minmax(100px, 1fr)", render: (u) => (u.dataset ? html`<${DatasetLink} name=${u.dataset} />` : "–") }, { label: "Kind", width: "110px", render: (u) => html`<span class="tag">${u.kind}</span>` },
    { label: "Size", width: "80px", align: "right", render: (u) => format.size(u.bytes) }, { label: "Unused", width: "90px", align: "right", render: (u) => html`<${Time} at=${u.unused_since} />` }, { label: "Sweep", width: "90px", align: "right", render: (u) => html`<${Time} at=${u.sweep_at} />` }]} />`
    : html`<${Empty} title=${due ? "Nothing is due." : "Nothing is unused."} />`}</${Loaded}></${Panel}>`;
}

function Storage() {
  const unused = address.value.params.get("unused");
  const state = useLive((signal) => get("storage", {}, signal), [], { every: 30_000 });
  const sweep = () => ask({ title: "Sweep the storage now?", body: html`<p>Everything that is due is deleted. Nothing that a reader, a running task or a delivery needs is touched.</p>`, action: "Sweep", danger: true, run: async () => { const reply = await post("storage/sweep"); return `${format.count(reply.objects, "object")} (${format.size(reply.bytes)}) deleted.`; } });
  return html`<${Loaded} state=${state} rows=${6}>${(storage) => { const sum = (field) => storage.items.reduce((total, item) => total + item[field], 0); return html`
    <div class="stats"><${Stat} label="Stored" value=${format.size(sum("bytes"))} href="#by-kind" hint=${html`<a href="#by-kind">${format.count(sum("objects"), "object")}</a>`} />
      <${Stat} label="Due for deletion" value=${format.size(sum("due_bytes"))} href="/operations/storage?unused=due" hint=${html`<a href="/operations/storage?unused=due">${format.count(sum("due_prefixes"), "prefix")}</a>`} />
      <${Stat} label="Sweeper" value=${storage.sweeps ? "on" : "off"} hint=${html`<a href="/operations/storage?unused=all">what it waits for</a>`} />
      <${Stat} label="Foreign objects" value=${format.number(storage.foreign.objects)} hint=${`${format.size(storage.foreign.bytes)}, never deleted`} /></div>
    ${unused && html`<${Unused} key=${unused} due=${unused === "due"} />`}
    <${Panel} id="by-kind" title="By dataset and kind" actions=${can("admin") && html`<button onClick=${sweep}>Sweep now</button>`}><${Table} label="Storage" rows=${storage.items} columns=${[
      { label: "Dataset", width: "minmax(130px, 1.4fr)", render: (i) => (i.dataset ? html`<${DatasetLink} name=${i.dataset} />` : html`<span class="muted">tasks</span>`) }, { label: "Kind", width: "110px", render: (i) => html`<span class="tag">${i.kind}</span>` }, { label: "Objects", width: "90px", align: "right", render: (i) => format.number(i.objects) }, { label: "Size", width: "90px", align: "right", render: (i) => format.size(i.bytes) },
      { label: "Due", width: "90px", align: "right", render: (i) => format.size(i.due_bytes) }, { label: "Kept", width: "80px", align: "right", minor: true, render: (i) => format.number(i.kept_prefixes) }, { label: "Next sweep", width: "100px", align: "right", render: (i) => html`<${Time} at=${i.next_sweep_at} />` }]} /></${Panel}>`; }}</${Loaded}>`;
}

function Runtimes() {
  const state = useLive((signal) => get("runtimes", {}, signal), [], { every: 10_000 });
  const workers = (state.data?.items ?? []).flatMap((runtime) => runtime.worker_ids.map((worker) => ({ worker, runtime: runtime.name })));
  return html`<${Panel}><${Loaded} state=${state}>${(reply) => html`<${Table} label="Runtimes" rows=${reply.items} columns=${[
    { label: "Runtime", width: "minmax(110px, 1.4fr)", render: (r) => html`<a href=${`/tasks?runtime=${encodeURIComponent(r.name)}`}>${r.name}</a>` },
    { label: "Workers", width: "76px", align: "right", render: (r) => (r.workers === 0 ? html`<span class="state-warning">none</span>` : r.worker_ids.length ? html`<a class="num" href="#workers">${format.number(r.workers)}</a>` : format.number(r.workers)) },
    { label: "Launcher", minor: true, width: "90px", render: (r) => r.launcher }, { label: "Code", minor: true, width: "90px", render: (r) => html`<span class="tag">${r.trust}</span>` },
    { label: "Language", minor: true, width: "84px", render: (r) => r.language ?? "–" }, { label: "Queue", minor: true, width: "minmax(100px, 1.4fr)", render: (r) => html`<span class="mono">${r.queue ?? "–"}</span>` },
    { label: "Slots", width: "60px", align: "right", render: (r) => format.number(r.slots) }, { label: "Memory", width: "80px", align: "right", render: (r) => `${format.number(r.memory_mib)} MiB` },
    { label: "Longest task", minor: true, width: "100px", align: "right", render: (r) => (r.max_timeout === null ? "no limit" : format.duration(r.max_timeout)) },
    { label: "Idle end", minor: true, width: "90px", align: "right", render: (r) => (r.idle_timeout === null ? "never" : format.duration(r.idle_timeout)) }]} />`}</${Loaded}></${Panel}>
    ${workers.length > 0 && html`<${Panel} id="workers" title=${format.count(workers.length, "connected worker")}><${Table} label="Workers" rows=${workers} columns=${[
      { label: "Worker", width: "minmax(160px, 1.4fr)", wide: true, render: (w) => html`<a href=${tasksOf({ worker: w.worker })}>${w.worker}</a>` }, { label: "Runtime", width: "minmax(110px, 1fr)", render: (w) => w.runtime },
      { label: "Runs now", width: "120px", align: "right", render: (w) => html`<a href=${tasksOf({ worker: w.worker, status: "Running" })}>Running tasks</a>` }]} /></${Panel}>`}`;
}

function Users() {
  const state = useLive(() => getAll("users"), []);
  const change = (user, verb, text) => ask({ title: `${verb === "disable" ? "Disable" : "Enable"} ${user.name}?`, body: html`<p>${text}</p>`, action: verb === "disable" ? "Disable" : "Enable", danger: verb === "disable", run: async () => { await post(`users/${path(user.name)}/${verb}`); state.reload(); return "Done."; } });
  const setRole = (user, role) => ask({ title: `Make ${user.name} ${role}?`, body: html`<p>The new role applies from the next request on.</p>`, action: "Change the role", run: async () => { await post(`users/${path(user.name)}/role`, { role }); state.reload(); return `${user.name} is ${role} now.`; } });
  return html`<${Panel} title="Users" actions=${html`<${Command} text="trace users add NAME reader" />`}><${Loaded} state=${state}>${(users) => html`<${Table} label="Users" rows=${users} columns=${[
    { label: "User", width: "minmax(130px, 1fr)", render: (u) => html`<strong>${u.name}</strong>` }, { label: "Role", width: "120px", render: (u) => html`<select aria-label=${`Role of ${u.name}`} value=${u.role} onChange=${(e) => { const role = e.target.value; e.target.value = u.role; setRole(u, role); }}>${["reader", "writer", "admin"].map((r) => html`<option>${r}</option>`)}</select>` },
    { label: "State", width: "110px", render: (u) => html`<${State} status=${u.disabled_at ? "canceled" : "completed"} text=${u.disabled_at ? "disabled" : "enabled"} />` }, { label: "Added", width: "100px", align: "right", render: (u) => html`<${Time} at=${u.added_at} />` },
    { label: "", width: "100px", align: "right", render: (u) => (u.disabled_at ? html`<button onClick=${() => change(u, "enable", "The tokens of this user work again.")}>Enable</button>` : html`<button onClick=${() => change(u, "disable", "Every request of this user is refused immediately, also with tokens that have not expired.")}>Disable</button>`) }]} />`}</${Loaded}></${Panel}>`;
}

function Keys() {
  const state = useLive((signal) => get("certificate-keys", {}, signal), []);
  return html`<${Panel} title="Public keys of manifests"><${Loaded} state=${state}>${({ keys }) => html`<${Table} label="Keys" rows=${keys} columns=${[{ label: "Key", width: "minmax(180px, 1fr)", wide: true, render: (k) => html`<span class="mono">${k.kid}</span>` }, { label: "Algorithm", width: "100px", render: (k) => k.alg ?? k.crv }, { label: "x", width: "minmax(160px, 2fr)", wide: true, render: (k) => html`<span class="mono muted">${k.x}</span>` }]} />`}</${Loaded}></${Panel}>
    <${Panel} title="Other keys"><div class="panel-body stack"><p>Keys of tasks, services and workers are files of the stack and have no API. The command line rotates them:</p><${Command} text="trace keys --help" /></div></${Panel}>`;
}
