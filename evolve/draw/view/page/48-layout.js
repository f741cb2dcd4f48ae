"use strict";

// A drawing of a family tree: every program has a place of its own, and every line passes beside all others.

const SWEEPS = 12; // over the rows, alternately down and up
const STUB = 0.22; // of the height of a row: how far a line stays vertical beside the programs of a row

/**
 * Places of a family tree. `parentsOf`: a map from every node to its parents, with each node after all of its parents.
 *
 * Returns {places, lines, width, height}: [x, y] by node, and the points of a line for each pair of parent and child. Rows and
 * columns are 1 apart. A node is in the row above the highest of its children. A line across several rows takes a column in
 * each of them, which all lines of its parent share; it leaves a row vertically and crosses over between the rows.
 */
function familyTree(parentsOf) {
  const nodes = [...parentsOf.keys()];
  const row = new Map(nodes.map((node) => [node, 0]));
  for (const node of [...nodes].reverse()) for (const parent of parentsOf.get(node)) row.set(parent, Math.max(row.get(parent), row.get(node) + 1));
  const rows = range(Math.max(...row.values()) + 1).map(() => new Map()); // of the stops in each, by the node that a stop belongs to
  const stop = (owner, y) => {
    if (!rows[y].has(owner)) rows[y].set(owner, { x: rows[y].size, y, above: [], below: [] });
    return rows[y].get(owner);
  };
  nodes.forEach((node) => stop(node, row.get(node)));
  const routes = nodes.flatMap((child) => parentsOf.get(child).map((parent) => [
    ...range(row.get(parent) - row.get(child)).map((k) => stop(parent, row.get(parent) - k)), stop(child, row.get(child)),
  ]));
  for (const [upper, lower] of routes.flatMap((route) => route.slice(1).map((lower, k) => [route[k], lower]))) {
    lower.above.push(upper);
    upper.below.push(lower);
  }
  const width = Math.max(...rows.map((stops) => stops.size));
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const [order, side] = sweep % 2 ? [[...rows], "below"] : [[...rows].reverse(), "above"];
    order.forEach((stops) => arrange([...stops.values()], side, width));
  }
  return { places: new Map(nodes.map((node) => [node, spotOf(stop(node, row.get(node)))])), lines: routes.map(lineAlong), width, height: rows.length };
}

const spotOf = ({ x, y }) => [x, y];

/** The points of a line along the stops of a route. */
const lineAlong = (route) => route.slice(1).flatMap((lower, k) => {
  const upper = route[k];
  return [spotOf(upper), [upper.x, upper.y - STUB], [lower.x, lower.y + STUB], spotOf(lower)];
});

/** Move the stops of a row to the means of their neighbours on a side, as closely as the least distance of 1 and the width allow. */
function arrange(stops, side, width) {
  const wanted = stops.map((stop) => [stop, stop[side].length ? stop[side].reduce((sum, other) => sum + other.x, 0) / stop[side].length : stop.x]);
  wanted.sort((a, b) => a[1] - b[1]);
  const blocks = []; // of stops that touch: isotonic regression of the wanted places less those of stops packed from 0 on
  wanted.forEach(([stop, x], k) => {
    blocks.push({ sum: x - k, stops: [stop] });
    while (blocks.length > 1 && meanOf(blocks.at(-2)) > meanOf(blocks.at(-1))) {
      const last = blocks.pop();
      blocks.at(-1).sum += last.sum;
      blocks.at(-1).stops.push(...last.stops);
    }
  });
  let k = 0;
  for (const block of blocks) {
    const start = Math.min(Math.max(meanOf(block), 0), width - stops.length);
    for (const stop of block.stops) stop.x = start + k++;
  }
}

const meanOf = ({ sum, stops }) => sum / stops.length;
