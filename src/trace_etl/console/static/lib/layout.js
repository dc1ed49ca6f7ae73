// Where the nodes of a graph are drawn. Runs in a worker; `layers` is also the fallback for large graphs.

export const NODE = { width: 190, height: 58 };
const GAP = { x: 48, y: 22 };

/**
 * Plain layers: each node is one column to the right of its last input. Fast for any graph.
 * @param {string[]} ids @param {[string, string][]} edges @param {boolean} [isDown] Whether inputs are above, not on the left.
 * @returns {Record<string, {x: number, y: number}>}
 */
export function layers(ids, edges, isDown = false) {
  const inputs = new Map(ids.map((id) => [id, /** @type {string[]} */ ([])]));
  const outputs = new Map(ids.map((id) => [id, /** @type {string[]} */ ([])]));
  for (const [from, to] of edges) {
    if (from === to || !inputs.has(from) || !inputs.has(to)) continue;
    inputs.get(to).push(from);
    outputs.get(from).push(to);
  }
  const waiting = new Map(ids.map((id) => [id, inputs.get(id).length]));
  const level = new Map(ids.map((id) => [id, 0]));
  const ready = ids.filter((id) => !waiting.get(id));
  for (let i = 0; i < ready.length; i++) {
    for (const next of outputs.get(ready[i])) {
      level.set(next, Math.max(level.get(next), level.get(ready[i]) + 1));
      waiting.set(next, waiting.get(next) - 1);
      if (!waiting.get(next)) ready.push(next);
    }
  }
  const columns = [];
  for (const id of ids) (columns[level.get(id)] ??= []).push(id);
  const row = new Map();
  const places = {};
  columns.forEach((column, x) => {
    // A node is near the middle of its inputs, so that edges cross rarely.
    const middle = new Map(column.map((id, i) => {
      const from = inputs.get(id).map((input) => row.get(input)).filter((at) => at !== undefined);
      return [id, from.length ? from.reduce((a, b) => a + b, 0) / from.length : i];
    }));
    column.sort((a, b) => middle.get(a) - middle.get(b));
    column.forEach((id, i) => {
      row.set(id, i);
      const across = i - (column.length - 1) / 2;
      places[id] = isDown ? { x: across * (NODE.width + GAP.y), y: x * (NODE.height + GAP.x) } : { x: x * (NODE.width + GAP.x), y: across * (NODE.height + GAP.y) };
    });
  });
  return places;
}
