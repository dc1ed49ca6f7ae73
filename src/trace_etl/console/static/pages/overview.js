// Is everything healthy? What runs, waits and failed, and how far is every followed chain?
import { get } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import * as format from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Empty, html, Icon, JobLink, DatasetLink, Loaded, Page, Panel, State, Table, TaskLink, Time } from "../lib/ui.js";

/** In the address of a list of tasks: those that failed without an error code. */
export const NO_CODE = "-";

const load = async (signal) => {
  const [overview, failures, invalidations, running, runtimes] = await Promise.all([
    get("overview", {}, signal),
    get("failures", {}, signal),
    get("invalidations", { limit: 20 }, signal),
    get("tasks", { status: "Running", limit: 12 }, signal),
    get("runtimes", {}, signal),
  ]);
  const empty = runtimes.items.filter((runtime) => runtime.workers === 0);
  const stuck = await Promise.all(empty.map(async ({ name }) => ({ name, tasks: await findUnfinished(name, signal) })));
  return { overview, failures: failures.items, invalidations: invalidations.items, running: running.items, stuck: stuck.filter(({ tasks }) => tasks) };
};

/** The state of unfinished tasks of a runtime, if it has any. @param {string} runtime @param {AbortSignal} signal */
async function findUnfinished(runtime, signal) {
  for (const status of ["Running", "Queued"]) if ((await get("tasks", { runtime, status, limit: 1 }, signal)).items.length) return status;
  return null;
}

export function OverviewPage() {
  const state = useLive(load, [], { every: 10_000 });
  return html`<${Page} title="Overview">
    <${Loaded} state=${state} rows=${8}>${(data) => (data.overview.dags ? html`<${Content} ...${data} />` : html`<${Panel}><${Empty}
      title="No DAG is deployed yet." command="trace deploy examples/quickstart/dag.yaml">A DAG describes jobs and the datasets that they write. Deploy one, then trigger a range of blocks.</${Empty}></${Panel}>`)}</${Loaded}>
  </${Page}>`;
}

function Content({ overview, failures, invalidations, running, stuck }) {
  const reorganisations = invalidations.filter((item) => item.reason.startsWith("reorganisation"));
  return html`<${Health} overview=${overview} failures=${failures} stuck=${stuck} />
    <div class="stats">
      <${Stat} icon="running" label="Running" value=${overview.running} href="/tasks?status=Running" />
      <${Stat} icon="queued" label="Waiting" value=${overview.queued} href="/tasks?status=Queued" hint=${overview.retrying ? `${format.number(overview.retrying)} retry later` : ""} />
      <${Stat} icon="failed" label="Failed" value=${overview.failed} href="/tasks?view=failures" hint=${`${format.number(overview.failed_last_hour)} in the last hour`} />
      <${Stat} icon="completed" label="Completed, last hour" value=${overview.completed_last_hour} href="/tasks?status=Completed" />
      <${Stat} icon="paused" label="Paused jobs" value=${overview.paused} href="/operations/pauses" />
      <${Stat} icon="idle" label="Jobs" value=${overview.jobs} href="/dags" hint=${`in ${format.count(overview.dags, "DAG")}`} />
    </div>
    <div class="columns wide-left">
      <${Panel} title="Tasks that ended, per minute" actions=${html`<span class="legend-inline"><i class="swatch sw-committed" /> completed <i class="swatch sw-failed" /> failed</span>`}><${Throughput} minutes=${overview.minutes} /></${Panel}>
      <${Panel} title="Followed chains"><${Chains} chains=${overview.chains} /></${Panel}>
    </div>
    ${failures.length > 0 && html`<${Panel} title="Failures by error" actions=${html`<a href="/tasks?view=failures">All failures</a>`}><${FailureTable} items=${failures.slice(0, 6)} /></${Panel}>`}
    <div class="columns">
      <${Panel} title="Running now" actions=${html`<a href="/tasks?status=Running">All running tasks</a>`}>
        ${running.length ? html`<${Table} label="Running tasks" rows=${running} href=${(task) => `/tasks/${task.task_id}`} columns=${[
          { label: "Task", width: "142px", render: (task) => html`<${TaskLink} id=${task.task_id} />` },
          { label: "Job", width: "minmax(120px, 1.4fr)", render: (task) => html`<${JobLink} dag=${task.dag} job=${task.job} />` },
          { label: "Partition", width: "minmax(90px, 1fr)", render: (task) => html`<span class="mono">${task.partition_key ?? "–"}</span>` },
          { label: "For", width: "86px", align: "right", render: (task) => format.between(task.started_at, null) },
        ]} />` : html`<${Empty} title="Nothing runs now.">${overview.queued ? "Tasks wait: open one to see why." : "Every task has ended."}</${Empty}>`}
      </${Panel}>
      <${Panel} title="Invalidations and reorganisations" actions=${html`<a href="/operations/invalidations">All</a>`}>
        ${invalidations.length ? html`<${Table} label="Invalidations" rows=${invalidations.slice(0, 8)} columns=${[
          { label: "Dataset", width: "minmax(100px, 1fr)", render: (item) => (item.dataset ? html`<${DatasetLink} name=${item.dataset} />` : `${item.job}.${item.output}`) },
          { label: "Blocks", width: "minmax(90px, 1fr)", render: (item) => html`<span class="mono">${item.partition_key ?? `${item.start}–${item.end}`}</span>` },
          { label: "Reason", width: "minmax(110px, 1.4fr)", render: (item) => html`<span title=${item.reason}>${item.reason || "–"}</span>` },
          { label: "When", width: "80px", align: "right", render: (item) => html`<${Time} at=${item.made_at} />` },
        ]} />` : html`<${Empty} title="No data was invalidated.">A reorganisation of a followed chain appears here, with everything that was built again because of it.</${Empty}>`}
        ${reorganisations.length > 0 && html`<div class="table-foot">${format.count(reorganisations.length, "reorganisation")} among the newest ${invalidations.length}</div>`}
      </${Panel}>
    </div>`;
}

/** One line that says whether anything needs attention. */
function Health({ overview, failures, stuck }) {
  const problems = [
    overview.failed && html`<a href="/tasks?view=failures">${format.count(overview.failed, "task")} failed permanently</a>${failures.length > 1 ? ` with ${failures.length} different errors` : ""}`,
    overview.outbox_failed && html`<a href="/operations/outbox">${format.count(overview.outbox_failed, "side effect")} failed</a>`,
    overview.batches_failed && html`<a href="/operations/batches">${format.count(overview.batches_failed, "batch")} dead-lettered</a>`,
    overview.paused && html`<a href="/operations/pauses">${format.count(overview.paused, "paused job")}</a>`,
    ...stuck.map(({ name, tasks }) => html`<a href=${`/tasks?runtime=${encodeURIComponent(name)}&status=${tasks}`}>tasks ${tasks === "Running" ? "run" : "wait"} on ${name}, which has no worker</a>`),
    ...overview.chains.filter((chain) => chain.status !== "Running").map((chain) => html`<a href=${`/tasks/${chain.task_id}`}>${chain.dag}.${chain.job} is not following its chain</a>`),
  ].filter(Boolean);
  if (!problems.length) return html`<div class="banner"><${Icon} kind="completed" /><strong>Everything is healthy.</strong></div>`;
  return html`<div class="banner"><${Icon} kind="warning" /><span><strong>Needs attention: </strong>${problems.map((item, i) => html`${i ? " · " : ""}${item}`)}</span></div>`;
}

const Stat = ({ icon, label, value, href, hint }) =>
  html`<a class="stat" href=${href}><span class="label"><${Icon} kind=${icon} />${label}</span><span class="value">${format.compact(value)}</span><div class="hint">${hint ?? ""}</div></a>`;

function Throughput({ minutes }) {
  const last = Math.floor(Date.now() / 60_000) * 60;
  const counted = new Map(minutes.map((minute) => [Date.parse(minute.minute) / 1000, minute]));
  const times = Array.from({ length: 60 }, (_, i) => last - (59 - i) * 60);
  const data = [times, times.map((time) => counted.get(time)?.completed || null), times.map((time) => counted.get(time)?.failed || null)];
  const series = [{ label: "Completed", colour: "map-committed", kind: "bars" }, { label: "Failed", colour: "map-failed", kind: "bars" }];
  return html`<${Chart} data=${data} series=${series} label="Tasks completed and failed in each of the last 60 minutes" />`;
}

function Chains({ chains }) {
  if (!chains.length) return html`<${Empty} title="No chain is followed.">A job with <code>source: {kind: always_on}</code> follows a chain. Its position and lag appear here.</${Empty}>`;
  return html`<${Table} label="Followed chains" rows=${chains} href=${(chain) => `/tasks/${chain.task_id}`} columns=${[
    { label: "Source", width: "minmax(90px, 1.4fr)", render: (chain) => html`<${JobLink} dag=${chain.dag} job=${chain.job} />` },
    { label: "State", width: "88px", render: (chain) => html`<${State} status=${chain.status} />` },
    { label: "Block", width: "minmax(70px, 1fr)", align: "right", render: (chain) => format.number(chain.cursor) },
    { label: "Advanced", width: "80px", align: "right", render: (chain) => html`<${Time} at=${chain.advanced_at} none="never" />` },
  ]} />`;
}

export const FailureTable = ({ items, actions }) => html`<${Table} label="Failures by error" rows=${items} href=${(group) => `/tasks/${group.task_id}`} columns=${[
  { label: "Job", width: "minmax(140px, 1fr)", render: (group) => html`<${JobLink} dag=${group.dag} job=${group.job} />` },
  { label: "Error", width: "minmax(100px, 150px)", render: (group) => html`<${State} status="Failed" text=${group.error_code || "without a code"} />` },
  { label: "Tasks", width: "60px", align: "right", render: (group) => html`<a class="num" href=${`/tasks?status=Failed&dag=${encodeURIComponent(group.dag)}&job=${encodeURIComponent(group.job)}&error_code=${encodeURIComponent(group.error_code || NO_CODE)}`}>${format.number(group.tasks)}</a>` },
  { label: "Last message", width: "minmax(160px, 2fr)", render: (group) => html`<span class="mono" title=${group.error_message}>${group.error_message}</span>` },
  { label: "Last", width: "80px", align: "right", render: (group) => html`<${Time} at=${group.newest_at} />` },
  ...(actions ? [{ label: "", width: "auto", align: "right", render: actions }] : []),
]} />`;
