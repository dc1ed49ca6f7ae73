// The list of datasets.
import { getAll, path } from "../lib/api.js";
import { useState } from "../vendor/preact.js";
import * as format from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Count, Empty, html, JobLink, Loaded, Page, Panel, Table, Time } from "../lib/ui.js";

export function DatasetsPage() {
  const [text, setText] = useState("");
  const state = useLive(() => getAll("datasets", { published: true }), [], { matches: (change) => change.kind !== "task" });
  return html`<${Page} title="Datasets">
    <div class="filters"><label>Name<input value=${text} placeholder="Any" onInput=${(event) => setText(event.target.value)} /></label></div>
    <${Panel}><${Loaded} state=${state} rows=${6}>${(all) => {
      const rows = all.filter((dataset) => dataset.name.includes(text.trim()));
      return rows.length ? html`<${Table} label="Published datasets" rows=${rows} height=${Math.max(360, innerHeight - 220)} href=${(dataset) => `/datasets/${path(dataset.name)}`} columns=${[
        { label: "Dataset", width: "minmax(140px, 1.4fr)", wide: true, render: (d) => html`<a href=${`/datasets/${path(d.name)}`}>${d.name}</a>` },
        { label: "Written by", width: "minmax(140px, 1.4fr)", render: (d) => html`<${JobLink} dag=${d.dag} job=${d.job} />` },
        { label: "Blocks", width: "minmax(130px, 1fr)", align: "right", render: (d) => (d.range_start === null ? "–" : html`<span class="mono">${d.range_start}–${d.range_end}</span>`) },
        { label: "Partitions", width: "90px", align: "right", minor: true, render: (d) => html`<${Count} value=${d.partitions} href=${`/datasets/${path(d.name)}`} />` },
        { label: "Rows", width: "110px", align: "right", render: (d) => html`<${Count} value=${d.row_count} href=${`/datasets/${path(d.name)}?view=rows`} />` },
        { label: "Size", width: "80px", align: "right", minor: true, render: (d) => format.size(d.byte_count) },
        { label: "Updated", width: "90px", align: "right", render: (d) => html`<${Time} at=${d.updated_at} none="empty" />` },
      ]} />` : html`<${Empty} title=${all.length ? "No dataset has this name." : "No dataset is published yet."} command=${all.length ? undefined : "trace deploy examples/quickstart/dag.yaml"}>${all.length ? "" : "A DAG publishes datasets under names, which queries and other DAGs read."}</${Empty}>`;
    }}</${Loaded}></${Panel}></${Page}>`;
}
