// The list of tasks with filters, failures by error, and one task with its attempts and its log.
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { can, get, getAll, path, post } from "../lib/api.js";
import * as format from "../lib/format.js";
import { useLive, useMore } from "../lib/live.js";
import { address, setParams } from "../lib/router.js";
import { ask, Command, Empty, Failure, Fields, html, isNarrow, JobLink, Loaded, Page, Panel, State, Table, Tabs, TaskLink, taskState, Time, toast } from "../lib/ui.js";
import { FailureTable, NO_CODE } from "./overview.js";

const STATUSES = ["Queued", "Running", "Completed", "Failed", "Canceled"];
const FILTERS = ["dag", "job", "operator", "runtime", "worker", "error_code"];
/** Filters that links set, with their words. */
const CHIPS = {
  retrying: (value) => (value === "true" ? "will run again" : "will not run again"),
  finished_after: (value) => `ended since ${new Date(value).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`,
  invalidation_id: (value) => html`because of <a href=${`/operations/invalidations`}>invalidation <span class="mono">${format.short(value)}</span></a>`,
};
const PAGE = 200;
const WINDOW = 64 * 1024; // bytes of a log that are read at once
const isUnfinished = (task) => ["Queued", "Running"].includes(task.status) || Boolean(task.retry_at);

export function TasksPage() {
  const { params } = address.value;
  const view = params.get("view") === "failures" ? "failures" : "list";
  return html`<${Page} title="Tasks">
    <${Tabs} current=${view} href=${(key) => (key === "failures" ? "/tasks?view=failures" : "/tasks")} tabs=${[["list", "All tasks"], ["failures", "Failures by error"]]} />
    ${view === "failures" ? html`<${Failures} />` : html`<${TaskList} />`}
  </${Page}>`;
}

function TaskList() {
  const { params } = address.value;
  const filters = Object.fromEntries([...FILTERS, ...Object.keys(CHIPS), "status"].map((name) => [name, params.get(name) || undefined]));
  const key = JSON.stringify(filters);
  const isWithoutCode = filters.error_code === NO_CODE; // the API has no filter for it
  const read = async (limit, after, signal) => {
    for (;;) {
      const page = await get("tasks", { ...filters, error_code: isWithoutCode ? undefined : filters.error_code, limit, after }, signal);
      const items = isWithoutCode ? page.items.filter((task) => !task.error_code) : page.items;
      if (items.length || !page.next) return { items, next: page.next, last: page.items.at(-1) };
      after = page.next;
    }
  };
  const shown = useRef(PAGE);
  // What is shown is read again, up to the longest page, so that new tasks do not push others out.
  const state = useLive((signal) => read(Math.min(1000, shown.current), undefined, signal), [key], { matches: (change) => change.kind === "task" });
  const more = useMore(key, state.data?.next, (after) => read(PAGE, after));
  const last = state.data?.last;
  const isBelow = (task) => !last || task.created_at < last.created_at || (task.created_at === last.created_at && task.task_id < last.task_id);
  const below = more.items.filter(isBelow);
  const next = below.length ? more.next : state.data?.next;
  const rows = [...(state.data?.items ?? []), ...below].map((task) => ({ ...task, key: task.task_id }));
  shown.current = Math.max(PAGE, rows.length);
  const isGroup = (filters.dag || (filters.error_code && !isWithoutCode)) && !filters.operator && !filters.runtime && !filters.worker && !Object.keys(CHIPS).some((name) => filters[name]) && !(filters.job && !filters.dag);
  const canEnd = isGroup && can("writer") && !["Completed", "Canceled"].includes(filters.status) && rows.some(isUnfinished);
  return html`<${Filters} filters=${filters} />
    <${Panel} title=${canEnd && "Tasks"} actions=${canEnd && html`<button onClick=${() => cancelGroup(filters)}>Cancel all of these</button>`}><${Loaded} state=${state} rows=${10}>${() => rows.length ? html`<${Table} label="Tasks, newest first" rows=${rows} onEnd=${more.load}
      height=${Math.max(360, innerHeight - (isNarrow.value ? 200 : 260))} href=${(task) => `/tasks/${task.task_id}`} columns=${[
        { label: "State", width: "104px", render: (task) => html`<${State} status=${taskState(task)} />` },
        { label: "Job", width: "minmax(140px, 1fr)", render: (task) => html`<${JobLink} dag=${task.dag} job=${task.job} />` },
        { label: "Partition", width: "152px", render: (task) => html`<span class="mono">${task.partition_key ?? (task.cursor !== null ? `cursor ${task.cursor}` : "–")}</span>` },
        { label: "Attempt", width: "64px", align: "right", minor: true, render: (task) => html`<span class=${task.attempt > 1 ? "" : "muted"}>${task.attempt}</span>` },
        { label: "Reason or error", width: "minmax(180px, 2.4fr)", wide: true, render: (task) => html`<span class=${task.status === "Failed" ? "state-failed" : "muted"} title=${task.reason ?? task.error_message}>${shortReason(task.reason) ?? task.error_message ?? ""}</span>` },
        { label: "Duration", width: "86px", align: "right", minor: true, render: (task) => (task.started_at ? format.between(task.started_at, task.finished_at) : "–") },
        { label: "Created", width: "80px", align: "right", render: (task) => html`<${Time} at=${task.created_at} />` },
        { label: "Task", width: "142px", minor: true, render: (task) => html`<${TaskLink} id=${task.task_id} />` },
      ]} /><div class="table-foot">${format.count(rows.length, "task")} loaded${next ? "; scroll for more" : ""}</div>`
      : html`<${Empty} title="No task matches." command="trace trigger DAG JOB --range 0-9999">${Object.values(filters).some(Boolean) ? html`<a href="/tasks">Remove the filters</a>` : "Trigger a source to create tasks."}</${Empty}>`}</${Loaded}></${Panel}>`;
}

/** Without the time that the table has in its own column. */
const shortReason = (reason) => reason?.replace(/^queued since \S+ \S+: /, "");

/** Ask with the numbers that the API previews. */
async function cancelGroup(/** @type {Record<string, string>} */ { dag, job, status, error_code }) {
  const body = { dag, job, status, error_code };
  let preview;
  try {
    preview = await post("tasks/cancel", { ...body, dry_run: true });
  } catch (error) {
    return toast(error.message, "failed");
  }
  ask({
    title: `Cancel ${format.count(preview.canceled + preview.stopping, "task")}?`,
    body: html`<p>${format.count(preview.canceled, "waiting task")} will not start, and workers stop ${format.count(preview.stopping, "running task")} with their next heartbeat. Jobs downstream get no events for them.</p>
      <ul>${preview.groups.map((group) => html`<li><strong>${group.dag}.${group.job}</strong>: ${format.number(group.tasks)} ${group.status}${group.error_code ? html` with <code>${group.error_code}</code>` : ""}</li>`)}</ul>`,
    action: "Cancel the tasks", danger: true,
    run: async () => { const reply = await post("tasks/cancel", body); return `${format.count(reply.canceled, "task")} canceled, ${format.number(reply.stopping)} stopping.`; },
  });
}

function Filters({ filters }) {
  const dags = useLive((signal) => get("dags", { limit: 1000 }, signal), [], { matches: (c) => c.kind === "deploy" });
  const count = [...FILTERS, "status"].filter((name) => filters[name]).length;
  const fields = html`<div class="filters">
    <label>State<select value=${filters.status ?? ""} onChange=${(e) => setParams({ status: e.target.value })}><option value="">All</option>${STATUSES.map((s) => html`<option>${s}</option>`)}</select></label>
    <label>DAG<select value=${filters.dag ?? ""} onChange=${(e) => setParams({ dag: e.target.value })}><option value="">All</option>${(dags.data?.items ?? []).map((d) => html`<option>${d.dag}</option>`)}</select></label>
    ${FILTERS.slice(1).map((name) => html`<label>${name === "error_code" ? "Error" : name[0].toUpperCase() + name.slice(1)}
      <input value=${filters[name] ?? ""} placeholder="Any" onChange=${(e) => setParams({ [name]: e.target.value.trim() })} /></label>`)}
  </div>`;
  const chips = Object.entries(CHIPS).filter(([name]) => filters[name]);
  return html`${isNarrow.value ? html`<details class="filter-box"><summary>Filters${count ? ` (${count})` : ""}</summary>${fields}</details>` : fields}
    ${chips.length > 0 && html`<div class="chips">${chips.map(([name, describe]) => html`<span class="chip">${describe(filters[name])}<button class="quiet" aria-label="Remove this filter" onClick=${() => setParams({ [name]: undefined })}>×</button></span>`)}</div>`}`;
}

function Failures() {
  const state = useLive((signal) => get("failures", {}, signal), [], { matches: (change) => change.kind === "task" });
  const actions = can("writer") ? (group) => html`<button onClick=${() => retryGroup(group)}>Retry ${format.number(group.tasks)}</button>` : undefined;
  return html`<${Panel}><${Loaded} state=${state}>${({ items }) => items.length
    ? html`<${FailureTable} items=${items} actions=${actions} />`
    : html`<${Empty} title="No task failed permanently.">Failures are grouped here by job and error, and can be retried together.</${Empty}>`}</${Loaded}></${Panel}>`;
}

function retryGroup(group) {
  const { dag, job, error_code } = group;
  /** The API chooses by code. Tasks without one are named. */
  const run = async () => {
    if (error_code) return (await post("tasks/retry", { dag, job, error_code })).retried;
    const failed = (await getAll("tasks", { dag, job, status: "Failed" })).filter((task) => !task.error_code && !task.retry_at);
    let retried = 0;
    for (let i = 0; i < failed.length; i += 1000) retried += (await post("tasks/retry", { task_ids: failed.slice(i, i + 1000).map((task) => task.task_id) })).retried;
    return retried;
  };
  ask({
    title: `Retry ${format.count(group.tasks, "task")} of ${group.dag}.${group.job}?`,
    body: html`<p>All of them failed ${error_code ? html`with <code>${error_code}</code>` : "without an error code"}. Each gets as many attempts as a new task. Other tasks are not touched.</p>
      ${error_code && html`<${Command} text=${`trace retry --dag ${dag} --job ${job} --error ${error_code}`} />`}`,
    action: "Retry",
    run: async () => `${format.count(await run(), "task")} will run again.`,
  });
}

// --- one task -------------------------------------------------------------------------------------

export function TaskPage({ id }) {
  const state = useLive((signal) => get(`tasks/${path(id)}`, {}, signal), [id], { matches: (change) => change.kind === "task" && change.task_id === id, every: 15_000 });
  const task = state.data;
  const actions = task && can("writer") && html`${isUnfinished(task) && html`<button onClick=${() => cancel(task)}>Cancel</button>`}
    ${task.status === "Failed" && !task.retry_at && html`<button class="primary" onClick=${() => retry(task)}>Retry</button>`}`;
  return html`<${Page} title=${task ? `${task.job} ${task.partition_key ?? format.short(id)}` : format.short(id)} trail=${html`<a href="/tasks">Tasks</a> / ${task && html`<a href=${`/dags/${path(task.dag)}`}>${task.dag}</a>`}`} actions=${actions}>
    <${Loaded} state=${state}>${(found) => html`<${Task} task=${found} />`}</${Loaded}></${Page}>`;
}

function Task({ task }) {
  const { params } = address.value;
  const attempt = Number(params.get("attempt")) || task.attempt;
  return html`
    ${task.reason && html`<div class="banner"><${State} status=${taskState(task)} text="" /><span>${task.reason}</span></div>`}
    <${Panel}>
      <${Fields} items=${[
        ["State", html`<${State} status=${taskState(task)} />`],
        ["Job", html`<${JobLink} dag=${task.dag} job=${task.job} />`],
        ["Partition", task.partition_key && html`<span class="mono">${task.partition_key}</span>`],
        ["Cursor", task.cursor !== null ? format.number(task.cursor) : ""],
        ["Operator", task.operator],
        ["Runtime", html`<a href=${`/tasks?runtime=${encodeURIComponent(task.runtime)}`}>${task.runtime}</a>`],
        ["Worker", task.worker_id && html`<a href=${`/tasks?worker=${encodeURIComponent(task.worker_id)}`}>${task.worker_id}</a>`],
        ["Attempt", task.max_attempts > 10_000 ? `${task.attempt} (always on)` : `${task.attempt} of ${task.max_attempts}`],
        ["Created", html`<${Time} at=${task.created_at} />`],
        ["Waited", task.started_at && format.between(task.queued_at, task.started_at)],
        ["Ran", task.started_at && format.between(task.started_at, task.finished_at)],
        ["Next attempt", task.retry_at && html`<${Time} at=${task.retry_at} />`],
        ["Id", html`<span class="mono">${task.task_id}</span>`],
      ]} />
    </${Panel}>
    ${task.error_message && html`<${Panel} title=${html`Error <span class="tag">${task.error_code}</span>`}><${ErrorText} text=${task.error_message} task=${task} /></${Panel}>`}
    <${Panel} title="Attempts"><${Timeline} task=${task} chosen=${attempt} /></${Panel}>
    <${Outputs} task=${task} attempt=${attempt} />
    <${Payload} task=${task} />
    <${Log} key=${attempt} task=${task} attempt=${attempt} />`;
}

/** The message, and the line of the SQL of its revision that it points at. */
function ErrorText({ text, task }) {
  const line = Number(/line:? (\d+)/i.exec(text)?.[1] ?? 0);
  const sql = line && task.definition.config.sql;
  return html`<div class="error-text" tabindex="0">${text}</div>${sql && html`<${Code} text=${sql} pointed=${line} />`}`;
}

/** Text with numbered lines. @param {{text: string, pointed?: number}} props */
const Code = ({ text, pointed }) => html`<div class="code" tabindex="0"><pre>${text.replace(/\n$/, "").split("\n").map((row, i) =>
  html`<div class=${`line ${i + 1 === pointed ? "pointed" : ""}`}><span>${i + 1}</span><span>${row || " "}</span></div>`)}</pre></div>`;

/** What the task was given: its scope, its event, and the revision of its job. */
function Payload({ task }) {
  const { definition, parameters } = task;
  const { sql, ...config } = definition.config;
  const payload = parameters?.payload ?? null;
  return html`<${Panel} title="What it runs" actions=${html`<a href=${`/dags/${path(task.dag)}?view=versions${definition.dag_version ? `&to=${definition.dag_version}` : ""}`}>${definition.is_current ? "The deployed definition" : "An older definition"}</a>`}>
    <${Fields} items=${[
      ["Blocks", task.start !== null && html`<span class="mono">${task.start}–${task.end}</span>`], ["Priority", task.bulk ? "bulk" : "normal"],
      ["Strategy", definition.execution_strategy], ["Writes", definition.update_strategy], ["Partitioned by", definition.partition_by], ["Tick", parameters?.scheduled_time && html`<${Time} at=${parameters.scheduled_time} />`],
      ["Because of", task.invalidation_id && html`<a href=${`/tasks?invalidation_id=${task.invalidation_id}`}>an invalidation</a>`], ["Secrets", definition.secrets.join(", ")], ["Function", definition.bundle],
      ["Reads", definition.inputs.length > 0 && definition.inputs.map((input, i) => html`${i ? ", " : ""}${input.dataset ? html`<a href=${`/datasets/${path(input.dataset)}`}>${input.dataset}</a>` : html`<${JobLink} dag=${input.dag} job=${input.job} />.${input.output}`}`)],
    ]} />
    ${payload !== null && html`<div class="panel-body stack"><h3>Payload</h3></div><${Code} text=${JSON.stringify(payload, null, 2)} />`}
    ${sql && !task.error_message && html`<${Code} text=${sql} />`}
    ${Object.keys(config).length > 0 && html`<${Code} text=${JSON.stringify(config, null, 2)} />`}
  </${Panel}>`;
}

function Timeline({ task, chosen }) {
  const ended = task.attempts.map((a) => ({ ...a, state: a.outcome }));
  const isRunning = task.status === "Running" && !ended.some((a) => a.attempt === task.attempt);
  const all = isRunning ? [...ended, { attempt: task.attempt, worker_id: task.worker_id, started_at: task.started_at, ended_at: null, state: "Running" }] : ended;
  if (!all.length) return html`<${Empty} title="No attempt has started.">${task.reason ?? ""}</${Empty}>`;
  const now = Date.now();
  const from = Math.min(...all.map((a) => Date.parse(a.started_at ?? a.ended_at ?? task.created_at)));
  const to = Math.max(...all.map((a) => (a.ended_at ? Date.parse(a.ended_at) : now)), from + 1);
  return html`<div class="timeline">${all.slice(-50).map((a) => {
    const begin = Date.parse(a.started_at ?? a.ended_at);
    const end = a.ended_at ? Date.parse(a.ended_at) : now;
    const kind = { Completed: "completed", Failed: "failed", Canceled: "canceled", Running: "running" }[a.state] ?? "failed";
    const place = { left: `${(100 * (begin - from)) / (to - from)}%`, width: `${Math.max(0.4, (100 * (end - begin)) / (to - from))}%` };
    return html`<div class="timeline-row"><a href=${`?attempt=${a.attempt}`} aria-current=${a.attempt === chosen ? "true" : undefined}><${State} status=${a.state} text=${`#${a.attempt}`} /></a>
      <div class="timeline-track"><a class=${`state-${kind}`} href=${`?attempt=${a.attempt}`} style=${place} aria-label=${`Log of attempt ${a.attempt}`} title=${a.error_message ?? a.state} /></div>
      <span class="muted">${format.between(a.started_at, a.ended_at)} ${a.cause ? `· ${a.cause}` : ""}${a.worker_id ? ` · ${a.worker_id}` : ""}</span></div>`;
  })}</div>`;
}

function Outputs({ task, attempt }) {
  const outputs = task.attempts.find((a) => a.attempt === attempt)?.outputs ?? [];
  const names = useLive((signal) => (outputs.length ? get("datasets", { dag: task.dag, job: task.job, limit: 100 }, signal) : Promise.resolve({ items: [] })), [task.task_id, outputs.length]);
  if (!outputs.length) return null;
  const byId = new Map((names.data?.items ?? []).map((d) => [d.dataset_uuid, d]));
  return html`<${Panel} title="Outputs"><${Table} label="Outputs of the attempt" rows=${outputs} columns=${[
    { label: "Dataset", width: "minmax(120px, 1fr)", render: (o) => { const d = byId.get(o.dataset_uuid); return d?.name ? html`<a href=${`/datasets/${path(d.name)}?key=${encodeURIComponent(o.partition_key ?? "")}`}>${d.name}</a>` : (d?.output ?? html`<span class="mono">${format.short(o.dataset_uuid)}</span>`); } },
    { label: "Partition", width: "minmax(100px, 1fr)", render: (o) => html`<span class="mono">${o.partition_key ?? "–"}</span>` },
    { label: "Rows", width: "90px", align: "right", render: (o) => format.number(o.row_count) },
    { label: "Size", width: "80px", align: "right", render: (o) => format.size(o.byte_count) },
    { label: "Location", width: "minmax(160px, 2fr)", wide: true, render: (o) => html`<span class="mono muted" title=${o.location}>${o.location}</span>` },
  ]} /></${Panel}>`;
}

/** The end of the output of one attempt, and what it writes from now on. What came before is read on request. */
function Log({ task, attempt }) {
  const [log, setLog] = useState({ text: "", first: 0 });
  const [error, setError] = useState(/** @type {any} */ (null));
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const next = useRef(/** @type {number | null} */ (null));
  const place = useRef(/** @type {(box: HTMLDivElement) => void} */ (() => {}));
  const isRunning = task.status === "Running" && task.attempt === attempt;
  const isWanted = address.value.hash === "log";
  const read = (params) => get(`tasks/${task.task_id}/logs`, { attempt, ...params });
  const textOf = (reply) => reply.parts.map((part) => part.text).join("");
  useEffect(() => { if (isWanted) document.getElementById("log")?.scrollIntoView(); }, [isWanted, Boolean(log.text)]);
  useLayoutEffect(() => { if (box.current) place.current(box.current); }, [log]);
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    const follow = async () => {
      try {
        const isFirst = next.current === null;
        const reply = await read(isFirst ? { tail: WINDOW } : { start: next.current });
        if (stopped) return;
        const at = box.current;
        const isAtEnd = isFirst || !at || at.scrollHeight - at.scrollTop - at.clientHeight < 40;
        next.current = reply.next_start;
        place.current = (shown) => { if (isAtEnd) shown.scrollTop = shown.scrollHeight; };
        if (isFirst) setLog({ text: textOf(reply), first: reply.first });
        else if (reply.parts.length) setLog((before) => ({ ...before, text: before.text + textOf(reply) }));
        setError(null);
      } catch (failed) {
        if (!stopped) setError(failed);
      }
      if (isRunning && !stopped) timer = window.setTimeout(follow, 1500);
    };
    follow();
    return () => { stopped = true; clearTimeout(timer); };
  }, [task.task_id, attempt, isRunning]);
  const readEarlier = async () => {
    try {
      const reply = await read({ tail: WINDOW, before: log.first });
      const below = box.current ? box.current.scrollHeight - box.current.scrollTop : 0;
      place.current = (shown) => (shown.scrollTop = shown.scrollHeight - below); // the lines in view stay where they are
      setLog((before) => ({ text: textOf(reply) + before.text, first: reply.first }));
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Panel} id="log" title=${`Log of attempt ${attempt}`} actions=${html`${log.first > 0 && html`<button onClick=${readEarlier}>Earlier output (${format.size(log.first)})</button>`}<${Command} text=${`trace logs ${format.short(task.task_id)} --attempt ${attempt}`} />`}>
    <${Failure} error=${error} />
    ${log.text ? html`<div class="log" ref=${box} tabindex="0" role="log" aria-label=${`Log of attempt ${attempt}`}><pre>${log.text}</pre></div>`
      : html`<${Empty} title="This attempt wrote no output.">Functions write here what they print, and operators the error that ended them.</${Empty}>`}</${Panel}>`;
}

const cancel = (task) => ask({
  title: `Cancel ${task.job} ${task.partition_key ?? ""}?`,
  body: html`<p>${task.status === "Running" ? "The worker is asked to stop with its next heartbeat." : "The task does not start."} Jobs downstream get no event for it.</p>`,
  action: "Cancel the task", danger: true,
  run: async () => { await post(`tasks/${task.task_id}/cancel`); return "The task is canceled."; },
});
const retry = (task) => ask({
  title: `Retry ${task.job} ${task.partition_key ?? ""}?`,
  body: html`<p>It failed with <code>${task.error_code}</code> after ${format.count(task.attempt, "attempt")}, and gets as many attempts as a new task.</p>`,
  action: "Retry",
  run: async () => `${format.count((await post("tasks/retry", { task_ids: [task.task_id] })).retried, "task")} will run again.`,
});
