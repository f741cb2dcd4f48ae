"use strict";

// Stages and residuals: where a program is wrong, by stage of the load and by any fact of a run.

VIEWS.push({ section: "Compare", key: "residuals", title: "Stages & residuals", make: makeResiduals, lacks: noProgram });

function makeResiduals() {
  const stages = new Chart("Errors by stage of the load", { height: 480, file: "stages" });
  const residuals = new Chart("Residuals", { height: 440, file: "residuals" });
  const draw = () => { drawResiduals(residuals, shownRun(), latency.value, field.value, runs.value); drawStages(stages, shownRun(), latency.value, runs.value); };
  const latency = choice("latency", LATENCIES, draw);
  const field = choice("residuals against", {}, draw);
  const runs = choice("runs", { clean: "clean", all: "all, overloaded ones too" }, draw);
  return {
    node: viewNode([latency, field, runs], residuals.node, stages.node),
    update(run) {
      const names = [...new Set(run.experiments.flatMap((e) => Object.keys(e.fields)))];
      field.offer(Object.fromEntries(names.map((name) => [name, fieldTitle(name)])));
    },
    select: draw,
  };
}

const UNITS = { rps: "requests/s", ms: "ms", us: "µs", s: "s", gb: "GB", pct: "%", b: "billions", bytes: "bytes", tokens: "tokens", seqs: "sequences", blocks: "blocks" };
const UNIT_OF = { max_model_len: "tokens", block_size: "tokens" };

/** The name of a field in words, with the unit that it ends in. */
function fieldTitle(name) {
  if (name.includes("_per_")) return name.replace(/_/g, " ").replace(/\bus\b/g, "µs");
  const last = name.slice(name.lastIndexOf("_") + 1);
  const unit = UNIT_OF[name] ?? (last === name ? undefined : UNITS[last]);
  if (!unit) return name.replace(/_/g, " ");
  const words = UNIT_OF[name] || unit.startsWith(last) || last === "seqs" ? name : name.slice(0, -last.length - 1);
  return `${words.replace(/_/g, " ")} (${unit})`;
}

/** Blue for too low, orange for too high: told apart by people of all kinds of colour vision, and light enough for dark text. */
const SIGNED_SCALE = [[0, "#56b4e9"], [0.5, "#f3f4f5"], [1, "#f0941f"]];

/** Predictions on clean runs, or on all; a run of unknown quality counts as clean. */
const predictionsOn = (run, runs) => predictionsOf(run, selectedAt()).filter((p) => runs === "all" || (run.experiment(p.experiment)?.quality ?? "clean") === "clean");

function drawStages(chart, run, latency, runs) {
  const { problem, command } = detailOf(run, state.id);
  const rows = predictionsOn(run, runs).filter((p) => p.stages?.some((s) => isNumber(s[`${latency}_pct`])));
  if (!rows.length) return chart.draw({ empty: missing(problem ? `Errors by stage need the program's details. ${problem}` : "No run has figures by stage.", command) });
  const most = Math.max(...rows.map((r) => r.stages.length));
  const error = (r, k) => r.stages[k]?.[`${latency}_pct`] ?? null;
  const z = rows.map((r) => range(most).map((k) => error(r, k)));
  const largest = Math.max(1, quantile(z.flat().filter(isNumber).map(Math.abs).sort((a, b) => a - b), 0.9));
  const name = (r, k) => run.experiment(r.experiment)?.stages?.[k]?.name ?? `stage ${k + 1}`;
  const wide = NARROW.matches ? 22 : 44;
  chart.draw({
    traces: [{
      type: "heatmap", x: range(most), y: range(rows.length), z, zmin: -largest, zmax: largest, colorscale: SIGNED_SCALE, xgap: 2, ygap: 2, hoverongaps: false,
      text: z.map((line) => line.map((x) => (isNumber(x) ? signed(x) : ""))), texttemplate: "%{text}", textfont: { size: 11, color: "#10161c" }, hoverinfo: "text",
      hovertext: rows.map((r) => range(most).map((k) => said(r.experiment, name(r, k), `error ${signed(error(r, k))} %`))), showscale: !NARROW.matches, colorbar: colourBar(`${LATENCIES[latency]} error (%)`),
    }],
    layout: {
      xaxis: cellAxis("stage of the load", range(most).map((k) => String(k + 1))),
      yaxis: cellAxis("", rows.map((r) => shortName(r.experiment, wide)), { autorange: "reversed" }), uirevision: `${state.id}`,
    },
    height: Math.max(220, 90 + 24 * rows.length),
    summary: `Signed errors of the mean ${LATENCIES[latency]} in percent: predicted too low is negative, too high positive.`,
    table: () => table(`${LATENCIES[latency]} errors by stage`, [
      { head: "run", long: true, cell: (r) => r.experiment }, ...range(most).map((k) => ({ head: `stage ${k + 1} (%)`, number: true, cell: (r) => signed(error(r, k)) })),
    ], rows),
  });
}

function drawResiduals(chart, run, latency, field, runs) {
  if (!field) return chart.draw({ empty: missing("This page lacks the run's experiments, so it cannot draw residuals.") });
  const rows = predictionsOn(run, runs).map((p) => ({ ...p, x: run.experiment(p.experiment)?.fields?.[field], y: p.figures[latency]?.error_pct }));
  const points = rows.filter((r) => isNumber(r.x) && isNumber(r.y));
  if (!points.length) return chart.draw({ empty: missing(run.isScored(selectedAt()) ? `No run has both ${fieldTitle(field)} and an error of ${LATENCIES[latency]}.` : "This program was rejected, so it has no errors.") });
  const traces = byUse(points).map(({ name, rows: own, marker }) => ({
    type: "scatter", mode: "markers", name, x: own.map((r) => r.x), y: own.map((r) => r.y), marker,
    hoverinfo: "text", text: own.map((r) => said(r.experiment, `${fieldTitle(field)}: ${number(r.x, 4)}`, `error ${signed(r.y)} %`)),
  }));
  const worst = points.reduce((a, b) => (Math.abs(b.y) > Math.abs(a.y) ? b : a));
  const slope = correlation(points);
  chart.draw({
    traces,
    layout: { xaxis: axis(fieldTitle(field)), yaxis: axis(`${LATENCIES[latency]} error (%)`, { zerolinecolor: colour("strong-line"), zerolinewidth: 1.5 }), showlegend: true, uirevision: `${state.id} ${field} ${latency}` },
    summary: `Program ${state.id}: the largest error is ${signed(worst.y)} % on ${worst.experiment}.${isNumber(slope) ? ` The correlation with ${fieldTitle(field)} is ${slope.toFixed(2)} over ${counted(points.length, "run")}.` : ""}`,
    table: () => table(`${LATENCIES[latency]} errors and ${fieldTitle(field)}`, [
      { head: "run", long: true, cell: (r) => r.experiment }, { head: fieldTitle(field), number: true, cell: (r) => number(r.x, 4) }, { head: "error (%)", number: true, cell: (r) => signed(r.y) },
    ], points),
  });
}

/** Pearson's correlation of x and y; null if one of them does not vary. */
function correlation(points) {
  const mean = (name) => points.reduce((sum, p) => sum + p[name], 0) / points.length;
  const [x, y] = [mean("x"), mean("y")];
  const sum = (f) => points.reduce((total, p) => total + f(p), 0);
  const spread = Math.sqrt(sum((p) => (p.x - x) ** 2) * sum((p) => (p.y - y) ** 2));
  return spread > 0 && points.length > 2 ? sum((p) => (p.x - x) * (p.y - y)) / spread : null;
}
