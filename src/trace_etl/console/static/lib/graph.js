// A graph of jobs that can be moved and zoomed. Draws only the nodes in view.
import { useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { layers, NODE } from "./layout.js";
import { html } from "./ui.js";

const DAGRE_NODES = 250;
const DAGRE_EDGES = 800;
const SIMPLE = 0.45; // below this zoom, nodes have no text

const NARROW = 560; // below this width, inputs are above their readers

/** Positions of nodes: by dagre in a worker, or in plain layers if the graph is large. */
function useLayout(ids, edges, isDown) {
  const key = JSON.stringify([ids, edges, isDown]);
  const [places, setPlaces] = useState(/** @type {any} */ (null));
  useEffect(() => {
    const plain = () => setPlaces(layers(ids, edges, isDown));
    if (ids.length > DAGRE_NODES || edges.length > DAGRE_EDGES) return plain();
    const worker = new Worker(new URL("./layout-worker.js", import.meta.url), { type: "module" });
    const timer = setTimeout(() => { worker.terminate(); plain(); }, 3000);
    worker.onmessage = ({ data }) => { clearTimeout(timer); setPlaces(data); worker.terminate(); };
    worker.onerror = () => { clearTimeout(timer); plain(); };
    worker.postMessage({ ids, edges, isDown });
    return () => { clearTimeout(timer); worker.terminate(); };
  }, [key]);
  return places;
}

/**
 * @param {{nodes: {id: string, name: string, sub: string, state: string, badge?: string, foreign?: boolean, title: string}[],
 *   edges: {from: string, to: string, held?: boolean, busy?: boolean, trigger?: boolean, title: string}[],
 *   selected?: string, onSelect: (id: string) => void, search: string}} props
 */
export function GraphView({ nodes, edges, selected, onSelect, search }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [view, setView] = useState(/** @type {any} */ (null));
  const [size, setSize] = useState({ width: Math.min(800, innerWidth), height: 500 });
  const drag = useRef(/** @type {any} */ (null));
  const ids = useMemo(() => nodes.map((node) => node.id), [nodes]);
  const pairs = useMemo(() => edges.map((edge) => /** @type {[string, string]} */ ([edge.from, edge.to])), [edges]);
  const isDown = size.width < NARROW;
  const places = useLayout(ids, pairs, isDown);
  const bounds = useMemo(() => places && measure(places), [places]);

  useEffect(() => {
    const observer = new ResizeObserver(() => box.current && setSize({ width: box.current.clientWidth, height: box.current.clientHeight }));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const fit = () => bounds && setView(fitting(bounds, size));
  useEffect(fit, [bounds]);
  useEffect(() => { // a first view of a resized box
    if (bounds && view && !view.moved) fit();
  }, [size.width, size.height]);

  const zoom = (factor, x = size.width / 2, y = size.height / 2) =>
    setView((v) => {
      const k = Math.min(2, Math.max(0.02, v.k * factor));
      return { k, x: x - ((x - v.x) * k) / v.k, y: y - ((y - v.y) * k) / v.k, moved: true };
    });
  useEffect(() => {
    const onWheel = (event) => {
      event.preventDefault();
      const at = box.current.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 400), event.clientX - at.left, event.clientY - at.top);
    };
    box.current.addEventListener("wheel", onWheel, { passive: false });
    return () => box.current?.removeEventListener("wheel", onWheel);
  }, [size]);
  const onDown = (event) => {
    if (event.button || event.target.closest(".graph-tools")) return;
    drag.current = { x: event.clientX, y: event.clientY, view, moved: false };
  };
  const onMove = (event) => {
    const from = drag.current;
    if (!from) return;
    const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
    if (!from.moved && Math.hypot(dx, dy) < 4) return;
    if (!from.moved) box.current.setPointerCapture(event.pointerId);
    from.moved = true;
    setView({ ...from.view, x: from.view.x + dx, y: from.view.y + dy, moved: true });
  };
  const onUp = () => (drag.current = null);
  useEffect(() => { // a search result comes into view
    const wanted = search && nodes.find((node) => node.name.toLowerCase().includes(search.toLowerCase()));
    if (wanted && places?.[wanted.id]) centre(wanted.id, setView, places, size);
  }, [search, places]);

  const isMatch = (node) => !search || node.name.toLowerCase().includes(search.toLowerCase());
  const inView = view && places ? visible(places, view, size) : () => false;
  const height = bounds ? Math.round(Math.min(Math.max(300, bounds.height + 140), Math.max(360, innerHeight * 0.62))) : 300;
  const isSimple = view && view.k < SIMPLE;
  return html`<div class=${`graph ${drag.current?.moved ? "dragging" : ""} ${view?.moved ? "moved" : ""}`} ref=${box} style=${{ height: `${height}px` }} onPointerDown=${onDown} onPointerMove=${onMove} onPointerUp=${onUp} onPointerCancel=${onUp}>
    <svg role="group" aria-label=${`Graph of ${nodes.length} jobs`}>
      ${view && places && html`<g transform=${`translate(${view.x} ${view.y}) scale(${view.k})`}>
        ${edges.filter((edge) => places[edge.from] && places[edge.to] && (inView(edge.from) || inView(edge.to))).map((edge) =>
          html`<path key=${`${edge.from}>${edge.to}`} class=${`edge ${edge.held ? "held" : ""} ${edge.busy ? "busy" : ""} ${edge.trigger ? "trigger" : ""}`} d=${(isDown ? curveDown : curve)(places[edge.from], places[edge.to])}>${!isSimple && html`<title>${edge.title}</title>`}</path>`)}
        ${nodes.filter((node) => places[node.id] && inView(node.id)).map((node) =>
          html`<${Node} key=${node.id} node=${node} at=${places[node.id]} isSimple=${isSimple} isSelected=${node.id === selected} isDim=${!isMatch(node)}
            onSelect=${() => !drag.current?.moved && onSelect(node.id)} />`)}
      </g>`}
    </svg>
    <div class="graph-tools"><button onClick=${() => zoom(1.35)} aria-label="Zoom in">+</button><button onClick=${() => zoom(1 / 1.35)} aria-label="Zoom out">−</button><button onClick=${fit}>Fit</button></div>
  </div>`;
}

function Node({ node, at, isSimple, isSelected, isDim, onSelect }) {
  const onKey = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onSelect();
    }
  };
  return html`<g class=${`node ${isSelected ? "selected" : ""} ${isDim ? "dim" : ""} ${node.foreign ? "foreign" : ""}`} transform=${`translate(${at.x} ${at.y})`}
    tabindex="0" role="button" aria-pressed=${isSelected ? "true" : "false"} onClick=${onSelect} onKeyDown=${onKey}>
    <title>${node.title}</title><rect width=${NODE.width} height=${NODE.height} rx="8" />
    <path class=${`stripe state-${node.state}`} d=${`M0 8a8 8 0 0 1 6-7.7V${NODE.height - 0.3}A8 8 0 0 1 0 ${NODE.height - 8}z`} fill="currentColor" />
    ${!isSimple && html`<text class="name" x="18" y="23">${fitText(node.name, 20)}</text><text class="sub" x="18" y="42">${fitText(node.sub, 27)}</text>
      <svg x=${NODE.width - 26} y="10" width="14" height="14" viewBox="0 0 16 16" class=${`state-${node.state}`}>${GLYPHS[node.state]}</svg>
      ${node.badge && html`<text class=${`sub state-${node.state}`} x=${NODE.width - 12} y="42" text-anchor="end" fill="currentColor">${node.badge}</text>`}`}
  </g>`;
}

const GLYPHS = {
  failed: html`<path d="M4 4l8 8M12 4l-8 8" stroke="currentColor" stroke-width="2.4" />`,
  running: html`<path d="M5 3v10l8-5z" fill="currentColor" />`,
  queued: html`<circle cx="8" cy="8" r="5" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="2.6 2.6" />`,
  paused: html`<path d="M5.5 3v10M10.5 3v10" stroke="currentColor" stroke-width="2.6" />`,
  completed: html`<path d="M3 8.5l3.4 3.4L13 5" fill="none" stroke="currentColor" stroke-width="2.4" />`,
  idle: html`<circle cx="8" cy="8" r="2.4" fill="currentColor" />`,
};

const fitText = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function curve(from, to) {
  const [x1, y1] = [from.x + NODE.width, from.y + NODE.height / 2];
  const [x2, y2] = [to.x, to.y + NODE.height / 2];
  const bend = Math.max(30, (x2 - x1) / 2);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

function curveDown(from, to) {
  const [x1, y1] = [from.x + NODE.width / 2, from.y + NODE.height];
  const [x2, y2] = [to.x + NODE.width / 2, to.y];
  const bend = Math.max(20, (y2 - y1) / 2);
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}

function measure(places) {
  const all = Object.values(places);
  const xs = all.map((place) => place.x);
  const ys = all.map((place) => place.y);
  const min = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const max = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
  return { left: min(xs), top: min(ys), width: max(xs) - min(xs) + NODE.width, height: max(ys) - min(ys) + NODE.height };
}

function fitting(bounds, size) {
  const k = Math.min(1, (size.width - 32) / bounds.width, (size.height - 48) / bounds.height);
  return { k, x: (size.width - bounds.width * k) / 2 - bounds.left * k, y: (size.height - bounds.height * k) / 2 - bounds.top * k };
}

function centre(id, setView, places, size) {
  setView((v) => {
    const k = Math.max(v?.k ?? 1, 0.7);
    return { k, x: size.width / 2 - (places[id].x + NODE.width / 2) * k, y: size.height / 2 - (places[id].y + NODE.height / 2) * k, moved: true };
  });
}

function visible(places, view, size) {
  const [left, top] = [-view.x / view.k - NODE.width, -view.y / view.k - NODE.height];
  const [right, bottom] = [(size.width - view.x) / view.k, (size.height - view.y) / view.k];
  return (id) => places[id].x > left && places[id].x < right && places[id].y > top && places[id].y < bottom;
}
