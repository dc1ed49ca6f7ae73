// The list of deployed DAGs.
import { get, getAll, path } from "../lib/api.js";
import { useLive } from "../lib/live.js";
import { Count, Empty, html, Icon, Loaded, Page, Panel, Table, Time } from "../lib/ui.js";

const load = async (signal) => {
  const [dags, summary, jobs] = await Promise.all([getAll("dags"), get("tasks/summary", {}, signal), getAll("jobs")]);
  const sums = new Map();
  for (const job of summary.jobs) {
    const sum = sums.get(job.dag) ?? { queued: 0, running: 0, completed: 0 };
    for (const name of ["queued", "running", "completed"]) sum[name] += job[name];
    sums.set(job.dag, sum);
  }
  const failed = new Map();
  const paused = new Map();
  for (const job of jobs) {
    failed.set(job.dag, (failed.get(job.dag) ?? 0) + job.failed);
    if (job.paused_by || job.bulk_paused_by) paused.set(job.dag, (paused.get(job.dag) ?? 0) + 1);
  }
  return dags.map((dag) => ({ ...dag, ...sums.get(dag.dag), failed: failed.get(dag.dag) ?? 0, paused: paused.get(dag.dag) ?? 0 }));
};

export function DagsPage() {
  const state = useLive(load, [], { every: 20_000 });
  const tasks = (dag, status) => `/tasks?dag=${encodeURIComponent(dag)}&status=${status}`;
  return html`<${Page} title="DAGs"><${Panel}><${Loaded} state=${state}>${(dags) => dags.length
    ? html`<${Table} label="Deployed DAGs" rows=${dags} href=${(dag) => `/dags/${path(dag.dag)}`} columns=${[
        { label: "DAG", width: "minmax(160px, 2fr)", wide: true, render: (dag) => html`<${Icon} kind=${dag.failed ? "failed" : dag.paused ? "paused" : dag.running ? "running" : "completed"} label=${dag.failed ? "has failures" : dag.paused ? "has paused jobs" : dag.running ? "running" : "healthy"} /> <a href=${`/dags/${path(dag.dag)}`}>${dag.dag}</a>` },
        { label: "Jobs", width: "60px", align: "right", render: (dag) => html`<${Count} value=${dag.jobs} href=${`/dags/${path(dag.dag)}`} />` },
        { label: "Running", width: "80px", align: "right", render: (dag) => html`<${Count} value=${dag.running ?? 0} href=${tasks(dag.dag, "Running")} />` },
        { label: "Queued", width: "80px", align: "right", render: (dag) => html`<${Count} value=${dag.queued ?? 0} href=${tasks(dag.dag, "Queued")} />` },
        { label: "Failed", width: "80px", align: "right", render: (dag) => html`<${Count} value=${dag.failed} href=${`${tasks(dag.dag, "Failed")}&retrying=false`} />` },
        { label: "Completed", width: "90px", align: "right", render: (dag) => html`<${Count} value=${dag.completed ?? 0} href=${tasks(dag.dag, "Completed")} />` },
        { label: "Paused", width: "70px", align: "right", render: (dag) => html`<${Count} value=${dag.paused} href="/operations/pauses" />` },
        { label: "Deployed", width: "100px", align: "right", render: (dag) => html`<${Time} at=${dag.deployed_at} />` },
      ]} />`
    : html`<${Empty} title="No DAG is deployed yet." command="trace deploy examples/quickstart/dag.yaml">A DAG describes jobs and the datasets that they write.</${Empty}>`}</${Loaded}></${Panel}></${Page}>`;
}
