// Lay out a graph with dagre, outside of the thread of the page.
import { Graph, layout } from "../vendor/dagre.js";
import { NODE } from "./layout.js";

onmessage = ({ data: { ids, edges, isDown } }) => {
  const graph = new Graph();
  graph.setGraph({ rankdir: isDown ? "TB" : "LR", nodesep: 22, ranksep: 48, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of ids) graph.setNode(id, { ...NODE });
  for (const [from, to] of edges) if (from !== to) graph.setEdge(from, to);
  layout(graph);
  const places = {};
  for (const id of ids) {
    const { x, y } = graph.node(id);
    places[id] = { x: x - NODE.width / 2, y: y - NODE.height / 2 };
  }
  postMessage(places);
};
