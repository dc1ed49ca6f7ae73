// Is everything healthy? What runs, waits and failed, and how far is every followed chain?
import { get } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import * as format from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Empty, html, Icon, JobLink, DatasetLink, Loaded, Page, Panel, Stat, State, Table, TaskLink, Time } from "../lib/ui.js";

/** In the address of a list of tasks: those that failed without an error code. */
export const NO_CODE = "-";

const load = async (signal) => {
  const [overview, failures, invalidations, running] = await Promise.all([
    get("overview", {}, signal),
    get("failures", {}, signal),
    get("invalidations", { limit: 20 }, signal),
    get("tasks", { status: "Running", limit: 12 }, signal),
  ]);
  return { overview, failures: failures.items, invalidations: invalidations.items, running: running.items };
};

export function OverviewPage() {
  const state = useLive(load, [], { every: 10_000 });
  return html`<${Page} title="Overview">
    <${Loaded} state=${state} rows=${8}>${(data) => (data.overview.dags ? html`<${Content} ...${data} />` : html`<${Panel}><${Empty}
      title="No DAG is deployed yet." command="trace deploy examples/quickstart/dag.yaml">A DAG describes jobs and the datasets that they write. Deploy one, then trigger a range of blocks.</${Empty}></${Panel}>`)}</${Loaded}>
  </${Page}>`;
}

function Content({ overview, failures, invalidations, running }) {
  const lastHour = `finished_after=${new Date(Date.now() - 3_600_000).toISOString()}`;
  return html`<${Health} overview=${overview} />
    <div class="stats">
      <${Stat} icon="running" label="Running" value=${format.compact(overview.running)} href="/tasks?status=Running" />
      <${Stat} icon="queued" label="Waiting" value=${format.compact(overview.queued)} href="/tasks?status=Queued" hint=${overview.retrying > 0 && html`<a href="/tasks?status=Failed&retrying=true">${format.number(overview.retrying)} retry later</a>`} />
      <${Stat} icon="failed" label="Failed" value=${format.compact(overview.failed)} href="/tasks?view=failures" hint=${html`<a href=${`/tasks?status=Failed&${lastHour}`}>${format.number(overview.failed_last_hour)} in the last hour</a>`} />
      <${Stat} icon="completed" label="Completed, last hour" value=${format.compact(overview.completed_last_hour)} href=${`/tasks?status=Completed&${lastHour}`} />
      <${Stat} icon="paused" label="Paused jobs" value=${format.compact(overview.paused)} href="/operations/pauses" />
      <${Stat} icon="idle" label="Jobs" value=${format.compact(overview.jobs)} href="/dags" hint=${html`<a href="/dags">in ${format.count(overview.dags, "DAG")}</a>`} />
    </div>
    <div class="columns wider-left">
      <${Panel} title="Tasks that ended, per minute" actions=${html`<span class="legend-inline"><i class="swatch sw-committed" /> completed <i class="swatch sw-failed" /> failed</span>`}><${Throughput} minutes=${overview.minutes} /></${Panel}>
      <${Panel} title="Followed chains"><${Chains} chains=${overview.chains} /></${Panel}>
    </div>
    ${failures.length > 0 && html`<${Panel} title="Failures by error" actions=${html`<a href="/tasks?view=failures">All failures</a>`}><${FailureTable} items=${failures.slice(0, 6)} /></${Panel}>`}
    <div class="columns">
      <${Panel} title="Running now" actions=${html`<a href="/tasks?status=Running">All running tasks</a>`}>
        ${running.length ? html`<${Table} label="Running tasks" rows=${running} href=${(task) => `/tasks/${task.task_id}`} columns=${[
          { label: "Job", width: "minmax(120px, 1.2fr)", render: (task) => html`<${JobLink} dag=${task.dag} job=${task.job} />` },
          { label: "Partition", width: "minmax(150px, 1fr)", render: (task) => html`<${TaskLink} id=${task.task_id}>${task.partition_key ?? format.short(task.task_id)}</${TaskLink}>` },
          { label: "For", width: "86px", align: "right", render: (task) => format.between(task.started_at, null) },
        ]} />` : html`<${Empty} title="Nothing runs now.">${overview.queued ? "Tasks wait: open one to see why." : "Every task has ended."}</${Empty}>`}
      </${Panel}>
      <${Panel} title="Invalidations and reorganisations" actions=${html`<a href="/operations/invalidations">All</a>`}>
        ${invalidations.length ? html`<${Table} label="Invalidations" rows=${invalidations.slice(0, 8)} columns=${[
          { label: "Dataset", width: "minmax(100px, 1fr)", render: (item) => (item.dataset ? html`<${DatasetLink} name=${item.dataset} />` : `${item.job}.${item.output}`) },
          { label: "Blocks", width: "minmax(90px, 1fr)", render: (item) => html`<span class="mono">${item.partition_key ?? `${item.start}–${item.end}`}</span>` },
          { label: "Reason", width: "minmax(110px, 1.4fr)", wide: true, render: (item) => html`${item.is_reorganisation && html`<span class="tag">reorganised</span> `}<span title=${item.reason}>${item.reason || "–"}</span>` },
          { label: "When", width: "80px", align: "right", render: (item) => html`<${Time} at=${item.made_at} />` },
        ]} />` : html`<${Empty} title="No data was invalidated.">A reorganisation of a followed chain appears here, with everything that was built again because of it.</${Empty}>`}
      </${Panel}>
    </div>`;
}

/** One line that says whether anything needs attention. */
function Health({ overview }) {
  if (overview.is_healthy) return html`<div class="banner"><${Icon} kind="completed" /><strong>Everything is healthy.</strong></div>`;
  return html`<div class="banner"><${Icon} kind="warning" /><span><strong>Needs attention: </strong>${overview.problems.map((problem, i) => html`${i ? " · " : ""}<a href=${placeOf(problem)}>${problem.message}</a>`)}</span></div>`;
}

/** Where a problem is shown in full. @param {any} problem */
function placeOf(problem) {
  switch (problem.kind) {
    case "failed_tasks": return "/tasks?view=failures";
    case "failed_side_effects": return "/operations/outbox";
    case "failed_batches": return "/operations/batches";
    case "paused_jobs": return "/operations/pauses";
    case "runtime_without_workers": return `/tasks?status=Queued&runtime=${encodeURIComponent(problem.runtime)}`;
    default: return problem.task_id ? `/tasks/${problem.task_id}` : "/operations/runtimes";
  }
}

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
    { label: "Source", width: "minmax(110px, 1fr)", render: (chain) => html`<${State} status=${chain.is_paused ? "paused" : chain.status} text="" /> <${JobLink} dag=${chain.dag} job=${chain.job} />` },
    { label: "Block", width: "84px", align: "right", render: (chain) => html`<a class="num" href=${`/tasks/${chain.task_id}`}>${format.number(chain.position ?? chain.cursor)}</a>` },
    { label: "Behind", width: "104px", align: "right", render: (chain) => html`<${Lag} chain=${chain} />` },
    { label: html`<span title="Reorganisations in the last 24 hours">Reorgs</span>`, width: "52px", align: "right", render: (chain) => html`<a class=${chain.reorganisations ? "num" : "num muted"} href="/operations/invalidations?reorganisations=true">${format.number(chain.reorganisations)}</a>` },
  ]} />`;
}

/** How far a chain is behind its head. */
function Lag({ chain }) {
  if (chain.lag_blocks === null) return html`<span class="muted" title="The follower has not reported the head of its chain.">unknown</span>`;
  const title = `The head is block ${format.number(chain.head)}${chain.reported_at ? `, as seen ${format.relative(chain.reported_at)}` : ""}.`;
  return html`<span title=${title} class=${chain.lag_blocks ? "" : "state-completed"}>${chain.lag_blocks ? `${format.count(chain.lag_blocks, "block")}${chain.lag_seconds ? `, ${format.duration(chain.lag_seconds)}` : ""}` : "at the head"}</span>`;
}

export const FailureTable = ({ items, actions }) => html`<${Table} label="Failures by error" rows=${items} href=${(group) => `/tasks/${group.task_id}`} columns=${[
  { label: "Job", width: "minmax(140px, 1fr)", wide: true, render: (group) => html`<${JobLink} dag=${group.dag} job=${group.job} />` },
  { label: "Error", width: "minmax(100px, 150px)", render: (group) => html`<${State} status="Failed" text=${group.error_code || "without a code"} />` },
  { label: "Tasks", width: "60px", align: "right", render: (group) => html`<a class="num" href=${`/tasks?status=Failed&dag=${encodeURIComponent(group.dag)}&job=${encodeURIComponent(group.job)}&retrying=false&error_code=${encodeURIComponent(group.error_code || NO_CODE)}`}>${format.number(group.tasks)}</a>` },
  { label: "Last message", width: "minmax(160px, 2fr)", wide: true, render: (group) => html`<span class="mono" title=${group.error_message}>${group.error_message}</span>` },
  { label: "Last", width: "80px", align: "right", render: (group) => html`<${Time} at=${group.newest_at} />` },
  ...(actions ? [{ label: "", width: "auto", align: "right", render: actions }] : []),
]} />`;
