"use strict";

// Lineage: what a program was made from and by whom, what was made from it, and what changed.

VIEWS.push({ key: "lineage", title: "Lineage", make: makeLineage });

const MOST_NODES = 120;
const MOST_CHILDREN = 24;

function makeLineage() {
  const chart = new Chart("Ancestors above, children below", { height: 480, file: "lineage" });
  const depth = choice("generations of ancestors", { 2: "2", 4: "4", 8: "8", 30: "up to 30" }, () => redraw());
  depth.value = "4";
  const parent = choice("compare with", {}, () => drawDiff(shownRun()));
  const diff = make("div", { class: "stack" });
  const line = make("section", { class: "card" });
  const children = make("section", { class: "card" });
  const compare = card("Changes from a parent", make("div", { class: "controls" }, parent.node), diff);
  const body = make("div", { class: "view" }, make("div", { class: "controls" }, depth.node), chart.node, compare, line, children);
  const empty = make("div");
  const drawDiff = (run) => fill(diff, diffOf(run, Number(parent.value), state.id));
  const redraw = () => {
    const run = shownRun();
    const nothing = noProgram(run);
    fill(empty, nothing);
    body.hidden = Boolean(nothing);
    if (nothing) return;
    drawTree(chart, run, state.id, Number(depth.value));
    const parents = parentsHere(run, state.id);
    parent.offer(Object.fromEntries(parents.map((id) => [id, `parent ${id} (${run.operator(run.at(id))})`])));
    parent.node.hidden = !parents.length;
    drawDiff(run);
    fill(line, make("h3", {}, "The line of first parents"), lineTable(run, state.id));
    fill(children, make("h3", {}, "Children"), childrenTable(run, state.id));
  };
  return { node: make("div", { class: "view" }, empty, body), update: () => {}, select: redraw };
}

/** Parents of a program that are in the document, each once. */
const parentsHere = (run, id) => [...new Set(run.candidates.parents[run.at(id)] ?? [])].filter((p) => run.at(p) !== undefined);

/** Layers of the tree: the farthest ancestors first, then the program, then its children; and the edges. */
function treeOf(run, id, depth) {
  const layers = [[id]];
  const seen = new Set([id]);
  const edges = [];
  for (let level = 0; level < depth && layers[0].length && seen.size < MOST_NODES; level++) {
    const above = [];
    for (const child of layers[0]) {
      for (const parent of parentsHere(run, child)) {
        edges.push([parent, child]);
        if (!seen.has(parent) && seen.size < MOST_NODES) above.push(parent);
        if (seen.size < MOST_NODES) seen.add(parent);
      }
    }
    if (!above.length) break;
    layers.unshift(above);
  }
  const own = layers.length - 1;
  const children = run.childrenOf(id).filter((child) => !seen.has(child)).slice(0, MOST_CHILDREN);
  if (children.length) layers.push(children);
  edges.push(...children.map((child) => [id, child]));
  return { layers, own, edges: edges.filter(([a, b]) => layers.some((l) => l.includes(a)) && layers.some((l) => l.includes(b))) };
}

/** Positions [x, y] of the nodes by id: a layer is a row, its nodes are spread evenly over the width. */
function placed(layers) {
  const places = new Map();
  layers.forEach((layer, row) => layer.forEach((id, k) => places.set(id, [(k + 1) / (layer.length + 1), -row])));
  return places;
}

function drawTree(chart, run, id, depth) {
  const { layers, own, edges } = treeOf(run, id, depth);
  const places = placed(layers);
  const crowded = Math.max(...layers.map((l) => l.length)) > (NARROW.matches ? 5 : 14);
  const lines = edges.flatMap(([a, b]) => [places.get(a), places.get(b), [null, null]]);
  const row = (k) => (k < own ? "ancestors" : k === own ? "this program" : "children");
  const nodes = ["ancestors", "this program", "children"].map((kind, k) => {
    const ids = layers.filter((_, level) => row(level) === kind).flat();
    return {
      type: "scatter", mode: crowded && kind !== "this program" ? "markers" : "markers+text", name: kind, x: ids.map((n) => places.get(n)[0]), y: ids.map((n) => places.get(n)[1]),
      customdata: ids, hovertext: ids.map((n) => hover(run, run.at(n))), hoverinfo: "text", text: ids.map(String), textposition: "top center", cliponaxis: false,
      marker: { size: kind === "this program" ? 18 : 12, color: [palette()[0], palette()[5], palette()[2]][k], symbol: ids.map((n) => (n === run.champion ? "star" : run.isScored(run.at(n)) ? "circle" : "x")) },
    };
  });
  const kinds = new Set(layers.slice(0, own).flat().map((n) => run.operator(run.at(n))));
  const hidden = axis("", { visible: false, fixedrange: true });
  chart.draw({
    traces: [{ type: "scatter", mode: "lines", x: lines.map((p) => p[0]), y: lines.map((p) => p[1]), hoverinfo: "skip", showlegend: false, line: { color: colour("faint"), width: 1.2 } }, ...nodes.filter((n) => n.x.length)],
    layout: { xaxis: { ...hidden, range: [0, 1] }, yaxis: { ...hidden, range: [-layers.length + 0.6, 0.6] }, showlegend: true, uirevision: `${id} ${depth}` },
    height: Math.max(260, 110 + 80 * layers.length),
    summary: `Program ${id} was proposed by ${run.operator(run.at(id))}${ancestorsText(layers, own, kinds)} It has ${counted(run.childrenOf(id).length, "child").replace("childs", "children")}. A cross marks a rejected proposal, a star the champion.`,
    table: () => treeTable(run, layers, own),
  });
}

const ancestorsText = (layers, own, kinds) => (own === 0 ? " and has no parents." : `; ${counted(layers.slice(0, own).flat().length, "ancestor")} in ${counted(own, "generation")} above it, by ${counted(kinds.size, "kind")} of proposers.`);

function treeTable(run, layers, own) {
  const rows = layers.flatMap((ids, level) => ids.map((id) => ({ id, level: level - own })));
  return table("Programs of the picture, the farthest ancestors first", [
    { head: "program", cell: (r) => idButton(r.id) },
    { head: "generation", cell: (r) => (r.level < 0 ? `${-r.level} above` : r.level ? "child" : "this program") },
    { head: "proposed by", cell: (r) => run.operator(run.at(r.id)) },
    { head: "parents", cell: (r) => (run.candidates.parents[run.at(r.id)] ?? []).join(", ") || UNKNOWN },
    { head: MEASURES.mean_error, number: true, cell: (r) => plainPercent(run.value("mean_error", run.at(r.id))) },
  ], rows, { id: (r) => r.id });
}

/** The program, its first parent, that one's first parent, and so on. */
function firstLine(run, id) {
  const line = [];
  for (let at = id; at !== undefined && !line.includes(at); at = parentsHere(run, at)[0]) line.push(at);
  return line;
}

function lineTable(run, id) {
  const rows = firstLine(run, id).map((program, k, line) => {
    const [own, parents] = [program, line[k + 1]].map((x) => (x === undefined ? null : run.value("mean_error", run.at(x))));
    return { program, change: isNumber(own) && isNumber(parents) ? own - parents : null };
  });
  return table("From this program back to a seed", [
    { head: "program", cell: (r) => idButton(r.program) }, { head: "proposed by", cell: (r) => run.operator(run.at(r.program)) },
    { head: MEASURES.mean_error, number: true, cell: (r) => plainPercent(run.value("mean_error", run.at(r.program))) },
    { head: "change of it (points)", number: true, cell: (r) => signed(r.change, 2) },
    { head: "complexity", number: true, cell: (r) => count(run.value("complexity", run.at(r.program))) },
    { head: "idea", long: true, cell: (r) => run.candidates.idea[run.at(r.program)] ?? UNKNOWN },
  ], rows, { id: (r) => r.program });
}

function childrenTable(run, id) {
  const children = run.childrenOf(id);
  if (!children.length) return missing("No program was made from this one.");
  const by = (i) => run.value("mean_error", i) ?? Infinity;
  return programTable("Programs made from this one, the lowest mean error first", run, children.map((c) => run.at(c)).sort((a, b) => by(a) - by(b)), ["mean_error", "group_out", "complexity"]);
}
