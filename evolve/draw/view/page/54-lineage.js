"use strict";

// Lineage: what a program was made from and by whom, and what was made from it.

VIEWS.push({ section: "Search", key: "lineage", title: "Lineage", make: makeLineage, lacks: noProgram });

const MOST_NODES = 120;
const MOST_CHILDREN = 24;
const COLUMN_PX = 62; // a mark and its number
const ROW_PX = 64;

function makeLineage() {
  const chart = new Chart("Ancestors above, children below", { file: "lineage", wide: true });
  const depth = choice("generations of ancestors", { 2: "2", 4: "4", 8: "8", 30: "up to 30" }, () => drawTree(chart, shownRun(), state.id, Number(depth.value)));
  depth.value = "4";
  const children = make("div");
  return {
    node: viewNode([depth], chart.node, card("Children", children)),
    select(run) {
      drawTree(chart, run, state.id, Number(depth.value));
      fill(children, childrenTable(run, state.id));
    },
  };
}

/** Parents of a program that are in the document, each once. A parent comes before its children. */
const parentsHere = (run, id) => [...new Set(run.candidates.parents[run.at(id)] ?? [])].filter((p) => run.at(p) < run.at(id));

/** The nearest ancestors of a program over so many generations, the program and its children, in the order of the run; `more`: some are left out. */
function familyOf(run, id, depth) {
  const ancestors = new Set();
  let next = [id];
  let more = false;
  for (let level = 0; level < depth && next.length && !more; level++) {
    const found = [...new Set(next.flatMap((child) => parentsHere(run, child)))].filter((p) => !ancestors.has(p));
    next = found.slice(0, MOST_NODES - ancestors.size);
    more = next.length < found.length;
    next.forEach((p) => ancestors.add(p));
  }
  const children = run.childrenOf(id).filter((child) => parentsHere(run, child).includes(id));
  const shown = children.slice(0, MOST_CHILDREN);
  const ids = [...ancestors, id, ...shown].sort((a, b) => run.at(a) - run.at(b));
  return { ids, ancestors, children: new Set(shown), more: more || shown.length < children.length };
}

function drawTree(chart, run, id, depth) {
  const { ids, ancestors, children, more } = familyOf(run, id, depth);
  const { places, lines, width, height } = familyTree(new Map(ids.map((n) => [n, parentsHere(run, n).filter((p) => ids.includes(p))])));
  const points = lines.flatMap((line) => [...line, [null, null]]);
  const kinds = { ancestors: [...ancestors], "this program": [id], children: [...children] };
  const kindOf = (n) => Object.keys(kinds).find((kind) => kinds[kind].includes(n));
  const nodes = Object.entries(kinds).map(([kind, own], k) => ({
    type: "scatter", mode: "markers+text", name: kind, x: own.map((n) => places.get(n)[0]), y: own.map((n) => places.get(n)[1]), customdata: own,
    hovertext: own.map((n) => hover(run, run.at(n))), hoverinfo: "text", text: own.map(String), textposition: "middle right", cliponaxis: false,
    marker: { size: k === 1 ? 18 : 12, color: [palette()[0], palette()[5], palette()[2]][k], symbol: own.map((n) => (n === run.champion ? "star" : run.isScored(run.at(n)) ? "circle" : "x")) },
  }));
  const proposers = new Set(kinds.ancestors.map((n) => run.operator(run.at(n))));
  const hidden = { visible: false, fixedrange: true };
  const about = ancestors.size ? `; ${counted(ancestors.size, "ancestor")} above it, by ${counted(proposers.size, "kind")} of proposers` : "; no parents";
  chart.draw({
    traces: [{ type: "scatter", mode: "lines", x: points.map((p) => p[0]), y: points.map((p) => p[1]), hoverinfo: "skip", showlegend: false, line: { color: colour("strong-line"), width: 1.2 } }, ...nodes.filter((n) => n.x.length)],
    layout: { xaxis: axis("", { ...hidden, range: [-0.5, width] }), yaxis: axis("", { ...hidden, range: [-0.5, height - 0.5] }), showlegend: true, uirevision: `${id} ${depth}` },
    height: 60 + ROW_PX * (height + 0.4),
    width: COLUMN_PX * (width + 0.5),
    summary: `Program ${id} was proposed by ${run.operator(run.at(id))}${about}. A cross marks a rejected proposal, a star the champion.${more ? " Some relatives are left out of the picture." : ""}`,
    table: () => treeTable(run, ids, kindOf),
  });
  chart.reveal(places.get(id)[0]);
}

function treeTable(run, ids, kindOf) {
  return table("Programs of the picture, the oldest first", [
    ...programColumns(run, ["mean_error", "complexity"]), { head: "is", cell: (i) => ({ ancestors: "ancestor", children: "child" })[kindOf(run.candidates.id[i])] ?? "this program" },
    { head: "parents", cell: (i) => (run.candidates.parents[i] ?? []).join(", ") || UNKNOWN }, { head: "idea", long: true, cell: (i) => run.candidates.idea[i] ?? UNKNOWN },
  ], ids.map((id) => run.at(id)), { id: (i) => run.candidates.id[i] });
}

function childrenTable(run, id) {
  const children = run.childrenOf(id);
  if (!children.length) return missing("No program was made from this one.");
  const by = (i) => run.value("mean_error", i) ?? Infinity;
  return programTable("Programs made from this one, the lowest mean error first", run, children.map((c) => run.at(c)).sort((a, b) => by(a) - by(b)), ["mean_error", "group_out", "complexity"]);
}
