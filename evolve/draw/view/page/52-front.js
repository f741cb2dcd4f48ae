"use strict";

// Pareto front: what accuracy costs in size and in generality.

VIEWS.push({ section: "Search", key: "front", title: "Pareto front", make: makeFront, lacks: lacksScores });

const AXES = Object.fromEntries(["complexity", "operations", "constants", "features", "mean_error", "group_out", "e2e", "ttft", "itl", "worst3"].map((name) => [name, MEASURES[name]]));

const SHARES = { near: 0.9, all: 1 }; // of the programs that are within the axes

function makeFront() {
  const chart = new Chart("Programs by two measures", { height: 520, file: "front" });
  const redraw = () => { drawFront(chart, shownRun(), { across: across.value, up: up.value, hue: hue.value, share: SHARES[show.value] }); mark(); };
  const across = choice("across", AXES, redraw);
  const up = choice("up", AXES, redraw);
  const hue = choice("colour", AXES, redraw);
  const show = choice("show", { near: "near the best", all: "all" }, redraw);
  [across.value, up.value, hue.value] = ["complexity", "mean_error", "group_out"];
  const mark = () => {
    const i = selectedAt();
    chart.mark(i === undefined ? null : [shownRun().value(across.value, i), shownRun().value(up.value, i)]);
  };
  const rule = make("p", { class: "note" }, "The Pareto front compares consistency, worst-3 E2E, mean error, complexity and leave-group-out error. No other program is at least as good in all of them and better in one. In a chart of two measures a point of the front may look dominated. The step line joins the best points of these two.");
  return { node: viewNode([across, up, hue, show], chart.node, rule), update: redraw, select: mark };
}

function drawFront(chart, run, { across, up, hue, share }) {
  const has = (i) => isNumber(run.value(across, i)) && isNumber(run.value(up, i));
  const [x, y] = [across, up].map((name) => (i) => run.value(name, i));
  const front = run.scored.filter((i) => run.onFront.has(run.candidates.id[i]) && has(i));
  const dominated = run.scored.filter((i) => !run.onFront.has(run.candidates.id[i]) && has(i));
  const shown = thinned(dominated, MOST_FAINT);
  const champion = [run.at(run.champion)].filter((i) => i !== undefined && has(i));
  const steps = staircase(front.filter((i) => run.candidates.consistent[i] !== false), x, y);
  const text = shown.length < dominated.length ? ` ${count(shown.length)} of the dominated are drawn.` : "";
  chart.draw({
    traces: [
      programTrace(run, shown, x, y, { name: "dominated", marker: { color: colour("faint"), size: 5, opacity: 0.5 } }),
      { type: "scatter", mode: "lines", name: "best of two measures", x: steps.map(x), y: steps.map(y), hoverinfo: "skip", line: { shape: "hv", color: colour("soft"), width: 1.5, dash: "dot" } },
      ...frontTraces(run, front, x, y, hue),
      programTrace(run, champion, x, y, { name: "champion", marker: { symbol: "star", size: 17, color: "#d55e00", line: { color: colour("card"), width: 1.5 } } }),
    ],
    layout: { xaxis: measureAxis(run, across, share), yaxis: measureAxis(run, up, share), margin: roomyMargin(NARROW.matches ? 16 : 96), showlegend: true, uirevision: across + up + share },
    summary: `${counted(front.length, "program")} on the front, ${count(dominated.length)} dominated.${text}`,
    table: () => programTable("Programs on the front, the simplest first", run, [...front].sort((a, b) => run.value("complexity", a) - run.value("complexity", b)), ["worst3", "mean_error", "group_out", "complexity"]),
  });
}

/** Programs on the front, coloured by a measure; hollow where it was not measured. */
function frontTraces(run, front, x, y, hue) {
  const [known, unknown] = [true, false].map((wanted) => front.filter((i) => isNumber(run.value(hue, i)) === wanted));
  const outline = { symbol: "diamond", size: 9, line: { color: colour("strong-line"), width: 0.8 } };
  const hollow = { symbol: "diamond-open", size: 8, color: colour("soft"), line: { width: 1.5 } };
  const values = known.map((i) => run.value(hue, i)).sort((a, b) => a - b);
  const scale = {
    color: known.map((i) => run.value(hue, i)), cmin: values[0], cmax: quantile(values, 0.95), ...shades(), showscale: !NARROW.matches, colorbar: colourBar(MEASURES[hue]),
  };
  return [
    unknown.length ? [programTrace(run, unknown, x, y, { name: `front, ${MEASURES[hue].replace(/ \(.*/, "")} unknown`, marker: hollow })] : [],
    known.length ? [programTrace(run, known, x, y, { name: "front", marker: { ...outline, ...scale } })] : [],
  ].flat();
}

/** An axis of a measure that shows this share of the programs; errors span decades, sizes do not. */
function measureAxis(run, name, share) {
  const fixed = { automargin: false };
  if (!MEASURES[name].includes("%")) return axis(MEASURES[name], fixed);
  return logRangeAxis(MEASURES[name], ...rangeOf(run.scored.map((i) => run.value(name, i)), share), fixed);
}

/** The positions that no other dominates in two measures, from left to right. */
function staircase(positions, x, y) {
  let lowest = Infinity;
  return [...positions].sort((a, b) => x(a) - x(b) || y(a) - y(b)).filter((i) => y(i) < lowest && ((lowest = y(i)), true));
}
