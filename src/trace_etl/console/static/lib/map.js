// The partition map: a block range on a line, from the whole chain to single partitions, on a canvas.
import { useEffect, useRef, useState } from "../vendor/preact.js";
import { get, path } from "./api.js";
import { colour, watchTheme } from "./chart.js";
import * as format from "./format.js";
import { useLive } from "./live.js";
import { Failure, html } from "./ui.js";

const LANES = { partitions: [14, 66], work: [84, 14], axis: 102 };
const HEIGHT = 120;

/**
 * `at` is a range that the map shows first.
 * @param {{name: string, version?: string, selected: string | null, at?: string | null, onPick: (key: string) => void}} props
 */
export function PartitionMap({ name, version, selected, at, onPick }) {
  const main = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const strip = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const state = useRef(/** @type {any} */ ({ view: null, data: null, drag: null, pending: 0, frame: 0, abort: null }));
  const [tip, setTip] = useState(/** @type {any} */ (null));
  const [shown, setShown] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [missed, setMissed] = useState(/** @type {any} */ (null)); // why "Go to block" showed no partition
  const load = (/** @type {any} */ window, /** @type {AbortSignal} */ signal = undefined) => get(`datasets/${path(name)}/map`, { ...window, dataset_version: version, buckets: 1000 }, signal);
  const whole = useLive((signal) => load({}, signal), [name, version], { matches: (c) => (c.kind === "dataset" && c.dataset === name) || c.kind === "task" });

  const draw = () => {
    const s = state.current;
    if (s.frame || !main.current || !s.whole) return;
    s.frame = requestAnimationFrame(() => {
      s.frame = 0;
      if (!main.current || !strip.current) return; // the page was left
      const began = performance.now();
      drawMain(main.current, s.data ?? s.whole, s.view, selected);
      drawStrip(strip.current, s.whole, s.view);
      performance.measure("partition-map-draw", { start: began, end: performance.now() });
    });
  };
  /** Show other blocks: at once with the data at hand, then with the data of this window. */
  const move = (start, end) => {
    const s = state.current;
    const { first, last } = s.whole;
    const width = Math.min(Math.max(end - start, 4), last - first + 1);
    const left = Math.max(first, Math.min(start, last + 1 - width));
    s.view = { start: left, end: left + width };
    draw();
    clearTimeout(s.pending);
    s.pending = setTimeout(fetchWindow, 90);
  };
  const fetchWindow = async () => {
    const s = state.current;
    s.abort?.abort();
    s.abort = new AbortController();
    const start = Math.max(0, Math.floor(s.view.start));
    try {
      s.data = await load({ start, end: Math.max(start, Math.ceil(s.view.end) - 1) }, s.abort.signal);
      setShown(s.data);
      setError(null);
      draw();
    } catch (failed) {
      if (failed.name !== "AbortError") setError(failed); // the blocks stay as they were read before
    }
  };

  useEffect(() => {
    const s = state.current;
    if (!whole.data || whole.data.first === null) return;
    const isFirst = !s.whole;
    s.whole = whole.data;
    if (isFirst) {
      const range = /^(\d+)-(\d+)$/.exec(at ?? "");
      const width = range ? Number(range[2]) - Number(range[1]) + 1 : 0;
      const margin = width * (at === selected ? 12 : 1); // among its neighbours, or what the link names
      setShown(whole.data);
      if (range) move(Number(range[1]) - margin, Number(range[2]) + 1 + margin);
      else {
        s.view = { start: whole.data.first, end: whole.data.last + 1 };
        s.data = whole.data;
        setShown(whole.data);
      }
    } else fetchWindow();
    draw();
  }, [whole.data]);
  useEffect(draw, [selected]);
  useEffect(() => {
    const observer = new ResizeObserver(draw);
    if (main.current) observer.observe(main.current);
    const unwatch = watchTheme(draw);
    return () => {
      observer.disconnect();
      unwatch();
    };
  }, [whole.data?.first]);

  const blockAt = (event) => {
    const box = main.current.getBoundingClientRect();
    const { start, end } = state.current.view;
    return start + ((event.clientX - box.left) / box.width) * (end - start);
  };
  const zoom = (factor, at) => {
    const { start, end } = state.current.view;
    move(at - (at - start) * factor, at + (end - at) * factor);
  };
  useEffect(() => {
    const canvas = main.current;
    if (!canvas) return;
    const onWheel = (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const { start, end } = state.current.view;
        const by = ((end - start) * event.deltaX) / canvas.clientWidth;
        move(start + by, end + by);
      } else zoom(Math.exp(event.deltaY / 300), blockAt(event));
    };
    canvas.addEventListener("wheel", onWheel, { passive: false });
    return () => canvas.removeEventListener("wheel", onWheel);
  }, [whole.data?.first]);
  const onMove = (event) => {
    const s = state.current;
    if (s.drag) {
      const by = ((s.drag.x - event.clientX) / main.current.clientWidth) * (s.drag.end - s.drag.start);
      if (Math.abs(s.drag.x - event.clientX) > 3) s.drag.moved = true;
      if (s.drag.moved) return move(s.drag.start + by, s.drag.end + by);
    }
    const found = describe(s.data ?? s.whole, Math.floor(blockAt(event)));
    const box = main.current.getBoundingClientRect();
    setTip(found && { ...found, x: Math.min(event.clientX - box.left + 28, box.width - 210) });
  };
  const onUp = (event) => {
    const s = state.current;
    const wasDrag = s.drag?.moved;
    s.drag = null;
    if (wasDrag) return;
    const found = describe(s.data ?? s.whole, Math.floor(blockAt(event)));
    if (found?.partition) onPick(found.partition.partition_key);
    else if (found) zoom(0.2, blockAt(event));
  };
  const onKey = (event) => {
    const { start, end } = state.current.view;
    const by = (end - start) / 5;
    const keys = {
      ArrowLeft: () => move(start - by, end - by), ArrowRight: () => move(start + by, end + by),
      "+": () => zoom(0.5, (start + end) / 2), "-": () => zoom(2, (start + end) / 2), "0": reset,
      Enter: () => { const found = describe(state.current.data, Math.floor((start + end) / 2)); if (found?.partition) onPick(found.partition.partition_key); else zoom(0.5, (start + end) / 2); },
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  };
  /** Show the blocks around one, and open its partition. */
  const goTo = async (event) => {
    event.preventDefault();
    const text = event.target.elements.block.value.replaceAll(/[,_\s]/g, "");
    if (!/^\d+$/.test(text)) return setMissed(new Error(`${text || "This"} is not a block number.`));
    const block = Number(text);
    const { first, last } = state.current.whole;
    if (block < first || block > last) return setMissed(new Error(`Block ${format.number(block)} is outside of the dataset, which has blocks ${format.number(first)} to ${format.number(last)}.`));
    try {
      const partition = (await load({ start: block, end: block })).listed?.[0];
      setMissed(null);
      const margin = 12 * (partition ? partition.end - partition.start + 1 : 10);
      move((partition?.start ?? block) - margin, (partition?.end ?? block) + 1 + margin);
      if (partition) onPick(partition.partition_key);
      else setMissed(new Error(`Block ${format.number(block)} is not in a partition.`));
    } catch (failed) {
      setMissed(failed);
    }
  };
  const reset = () => move(state.current.whole.first, state.current.whole.last + 1);
  const onStrip = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const box = strip.current.getBoundingClientRect();
    const { first, last } = state.current.whole;
    const at = first + ((event.clientX - box.left) / box.width) * (last - first + 1);
    const width = state.current.view.end - state.current.view.start;
    move(at - width / 2, at + width / 2);
  };

  if (whole.error && !whole.data) return html`<div class="panel-body"><${Failure} error=${whole.error} /></div>`;
  if (whole.data && whole.data.first === null) return html`<div class="empty"><p class="empty-title">${whole.data.without_range ? "These partitions have no block range." : "Nothing is committed yet."}</p>
    <p>${whole.data.without_range ? "They are listed below by key." : "Trigger the source of the DAG, or start a backfill of a range."}</p></div>`;
  const covered = shown ? shown.blocks.reduce((a, b) => a + b, 0) : 0;
  const width = shown ? shown.end - shown.start + 1 : 0;
  const hot = shown ? countHot(shown) : 0;
  const missing = width - covered - hot;
  return html`<div class="map">
      <${Failure} error=${error ?? missed ?? whole.error} />
      <canvas class="strip" ref=${strip} onPointerDown=${onStrip} onPointerMove=${onStrip} aria-hidden="true" />
      <canvas class="main" ref=${main} tabindex="0" role="img" aria-label=${`Partition map of ${name}: ${shown ? `blocks ${shown.start} to ${shown.end}, ${covered} committed${hot ? `, ${hot} hot` : ""}, ${missing} missing` : "loading"}. Arrow keys move, plus and minus zoom, Enter opens a partition.`}
        onPointerDown=${(event) => { main.current.setPointerCapture(event.pointerId); state.current.drag = { x: event.clientX, ...state.current.view, moved: false }; setTip(null); }}
        onPointerMove=${onMove} onPointerUp=${onUp} onPointerLeave=${() => setTip(null)} onKeyDown=${onKey} />
      ${tip && html`<div class="tip" style=${{ left: `${tip.x}px`, top: "128px" }}>${tip.lines.map((line, i) => html`<div class=${i ? "muted" : "mono"}>${line}</div>`)}</div>`}
      <div class="map-axis"><span>${shown ? html`${format.number(covered)} of ${format.count(width, "block")} committed${hot ? `, ${format.number(hot)} hot` : ""}${missing ? html`, <strong>${format.number(missing)} missing</strong>` : ""} · ${format.count(shown.partitions.reduce((a, b) => a + b, 0), "partition")}` : "…"}</span>
        <span class="actions"><form class="actions" onSubmit=${goTo}><input name="block" class="block" inputmode="numeric" aria-label="Go to block" placeholder="Go to block" /></form><button class="quiet" onClick=${() => zoom(0.4, (state.current.view.start + state.current.view.end) / 2)}>Zoom in</button><button class="quiet" onClick=${() => zoom(2.5, (state.current.view.start + state.current.view.end) / 2)}>Zoom out</button><button class="quiet" onClick=${reset}>Whole chain</button></span></div>
    </div>
    <div class="legend">
      <span><i class="swatch sw-committed" />committed</span><span><i class="swatch sw-partial" />partly</span><span><i class="swatch sw-missing" />missing</span><span><i class="swatch sw-hot" />hot</span>
      <span><i class="swatch sw-stale" />stale against its inputs</span><span><i class="swatch sw-building" />running</span><span><i class="swatch sw-queued" />queued</span><span><i class="swatch sw-failed" />failed</span><span><i class="swatch sw-mark" />invalidated</span><span><i class="swatch sw-reorganised" />reorganised</span></div>`;
}

/** The first block of a bucket. */
const startOf = (data, bucket) => data.start + Math.floor((bucket * (data.end - data.start + 1)) / data.buckets);

/** Blocks of the window that readers see in a hot table only. */
function countHot(data) {
  if (!data.hot) return 0;
  return data.blocks.reduce((sum, committed, i) => {
    const [from, to] = [startOf(data, i), startOf(data, i + 1)];
    const shared = Math.min(to, data.hot.end + 1) - Math.max(from, data.hot.start);
    return sum + Math.max(0, Math.min(shared, to - from - committed));
  }, 0);
}

/** What is at a block, for the pointer. */
function describe(data, block) {
  if (!data || block < data.start || block > data.end) return null;
  const partition = data.listed?.find((one) => one.start <= block && block <= one.end);
  const width = data.end - data.start + 1;
  const bucket = Math.min(data.buckets - 1, Math.floor(((block - data.start + 1) * data.buckets - 1) / width));
  const [from, to] = [startOf(data, bucket), startOf(data, bucket + 1) - 1];
  const isHot = data.hot && data.hot.start <= block && block <= data.hot.end;
  const tasks = data.tasks.filter((one) => one.bucket === bucket);
  const lines = partition
    ? [partition.partition_key, `${format.count(partition.row_count, "row")}, ${format.size(partition.byte_count)}`, `committed ${format.relative(partition.committed_at)}`, partition.is_stale ? "stale: an input was replaced later" : ""]
    : [from === to ? `block ${from}` : `${from}–${to}`, data.blocks[bucket] === 0 ? (isHot ? `hot: in the table of ${data.hot.dag}.${data.hot.job}.${data.hot.output}` : "missing") : `${format.number(data.blocks[bucket])} of ${format.count(to - from + 1, "block")} committed`, data.stale[bucket] ? `${format.count(data.stale[bucket], "partition")} stale: an input was replaced later` : ""];
  for (const one of tasks) lines.push(["running", "queued", "failed"].filter((kind) => one[kind]).map((kind) => `${one[kind]} ${kind}`).join(", "));
  const hit = data.invalidations.find((one) => one.start <= to && one.end >= from);
  if (hit) lines.push(`${hit.is_reorganisation ? "reorganised" : "invalidated"} ${format.relative(hit.made_at)}: ${hit.reason || "no reason given"}`);
  return { partition, lines: lines.filter(Boolean) };
}

function prepare(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width };
}

function drawMain(canvas, data, view, selected) {
  const { context, width } = prepare(canvas, HEIGHT);
  const scale = width / (view.end - view.start);
  const x = (block) => (block - view.start) * scale;
  const [top, tall] = LANES.partitions;
  const [workTop, workTall] = LANES.work;
  context.fillStyle = colour("map-missing");
  context.fillRect(0, top, width, tall);
  drawHot(context, data, x, top, tall);
  if (data.listed && data.listed.length < width) drawPartitions(context, data, x, scale, selected);
  else drawBuckets(context, data, x, top, tall);
  const span = data.end - data.start + 1;
  // States differ in height, too. The highest is drawn first.
  const lanes = [{ kind: "failed", name: "map-failed", share: 1 }, { kind: "running", name: "map-building", share: 2 / 3 }, { kind: "queued", name: "queued", share: 1 / 3 }];
  context.fillStyle = colour("line");
  context.fillRect(0, workTop + workTall / 2, width, 1);
  for (const tasks of data.tasks) {
    const left = x(data.start + (tasks.bucket * span) / data.buckets);
    const wide = Math.max(2, x(data.start + ((tasks.bucket + 1) * span) / data.buckets) - left);
    for (const { kind, name, share } of lanes) {
      if (!tasks[kind]) continue;
      context.fillStyle = colour(name);
      context.fillRect(left, workTop + workTall * (1 - share), wide, workTall * share);
      if (kind === "failed" && wide > 7) cross(context, left + wide / 2, workTop + workTall / 2);
    }
  }
  for (const mark of data.invalidations) {
    context.fillStyle = colour(mark.is_reorganisation ? "map-reorganised" : "map-mark");
    const left = x(mark.start);
    context.fillRect(left, 8, Math.max(2, x(mark.end + 1) - left), 3);
    context.beginPath();
    if (mark.is_reorganisation) context.arc(left, 4, 4, 0, 2 * Math.PI);
    else for (const [dx, y] of [[-4, 0], [4, 0], [0, 8]]) context.lineTo(left + dx, y);
    context.fill();
  }
  drawAxis(context, view, width, x);
}

function cross(context, x, y) {
  context.strokeStyle = colour("surface");
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x - 3, y - 3);
  context.lineTo(x + 3, y + 3);
  context.moveTo(x + 3, y - 3);
  context.lineTo(x - 3, y + 3);
  context.stroke();
}

/** The blocks of the hot table, with lines across, below the partitions that took their place. */
function drawHot(context, data, x, top, tall) {
  if (!data.hot) return;
  const [left, wide] = [x(data.hot.start), Math.max(2, x(data.hot.end + 1) - x(data.hot.start))];
  context.fillStyle = colour("map-hot");
  context.fillRect(left, top, wide, tall);
  context.fillStyle = colour("surface");
  for (let at = top + 6; at < top + tall; at += 7) context.fillRect(left, at, wide, 1);
}

/** Each bucket as high as it is covered. Neighbours of one colour are drawn at once. */
function drawBuckets(context, data, x, top, tall) {
  const [full, part, stale] = [colour("map-committed"), colour("map-partial"), colour("map-stale")];
  for (let i = 0; i < data.buckets; ) {
    const bound = (n) => startOf(data, n);
    const level = (n) => (data.blocks[n] === 0 ? 0 : data.blocks[n] >= bound(n + 1) - bound(n) ? 1 : data.blocks[n] / (bound(n + 1) - bound(n)));
    const here = level(i);
    let next = i + 1;
    while (next < data.buckets && level(next) === here) next++;
    const left = x(bound(i));
    const wide = Math.max(1, x(bound(next)) - left);
    if (here === 1) {
      context.fillStyle = full;
      context.fillRect(left, top, wide, tall);
    } else if (here > 0) {
      context.fillStyle = part;
      context.fillRect(left, top, wide, tall);
      context.fillStyle = full;
      context.fillRect(left, top + tall * (1 - here), wide, tall * here);
    }
    i = next;
  }
  context.fillStyle = stale;
  data.stale.forEach((count, i) => {
    if (count) context.fillRect(x(startOf(data, i)), top + tall * 0.8, Math.max(1, x(startOf(data, i + 1)) - x(startOf(data, i))), tall * 0.2);
  });
}

function drawPartitions(context, data, x, scale, selected) {
  const [top, tall] = LANES.partitions;
  const [full, stale, accent] = [colour("map-committed"), colour("map-stale"), colour("accent")];
  for (const one of data.listed) {
    const left = x(one.start);
    const wide = (one.end - one.start + 1) * scale;
    const gap = wide > 4 ? 1 : 0;
    context.fillStyle = one.is_stale ? stale : full;
    context.fillRect(left, top, Math.max(1, wide - gap), tall);
    if (one.is_stale && wide > 6) hatch(context, left, top, wide - gap, tall);
    if (one.partition_key === selected) {
      context.strokeStyle = accent;
      context.lineWidth = 3;
      context.strokeRect(left - 1, top - 1, Math.max(3, wide - gap + 2), tall + 2);
    }
  }
}

/** Stale partitions also have stripes, for people who do not see the colour. */
function hatch(context, left, top, wide, tall) {
  context.save();
  context.beginPath();
  context.rect(left, top, wide, tall);
  context.clip();
  context.strokeStyle = colour("surface");
  context.lineWidth = 1;
  context.beginPath();
  for (let at = left - tall; at < left + wide; at += 7) {
    context.moveTo(at, top + tall);
    context.lineTo(at + tall, top);
  }
  context.stroke();
  context.restore();
}

function drawAxis(context, view, width, x) {
  const rough = (view.end - view.start) / Math.max(2, width / 100);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= rough) * power);
  context.fillStyle = colour("muted");
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  for (let at = Math.ceil(view.start / step) * step; at <= view.end; at += step) {
    const left = x(at);
    context.fillRect(left, LANES.axis, 1, 4);
    const text = format.number(at || 0); // not -0
    const wide = context.measureText(text).width;
    context.fillText(text, Math.min(Math.max(0, left - wide / 2), width - wide), LANES.axis + 6);
  }
}

function drawStrip(canvas, data, view) {
  const { context, width } = prepare(canvas, 26);
  const span = data.last - data.first + 1;
  const x = (block) => ((block - data.first) / span) * width;
  const [left, right] = [x(view.start), x(view.end)];
  const lane = (top, tall) => {
    context.fillStyle = colour("map-missing");
    context.fillRect(0, top, width, tall);
    drawHot(context, data, x, top, tall);
    drawBuckets(context, data, x, top, tall);
  };
  lane(11, 4); // the whole chain is a thin line, and the blocks in view a thick one
  context.save();
  context.beginPath();
  context.rect(left, 0, Math.max(4, right - left), 26);
  context.clip();
  lane(7, 12);
  context.restore();
  context.strokeStyle = colour("accent");
  context.lineWidth = 2;
  context.strokeRect(Math.max(1, left), 4, Math.max(4, Math.min(width - 1, right) - Math.max(1, left)), 18);
}
