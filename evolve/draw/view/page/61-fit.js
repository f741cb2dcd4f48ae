"use strict";

// Fit: what a program predicts for every run beside what was observed.

VIEWS.push({ section: "Compare", key: "fit", title: "Fit", make: makeFit, lacks: noProgram });

const FIGURES = { e2e: "mean E2E", ttft: "mean TTFT", itl: "mean ITL", e2e_p99: "p99 of E2E", ttft_p99: "p99 of TTFT" };

function makeFit() {
  const chart = new Chart("Predicted against observed", { height: 560, file: "fit" });
  const curves = new Chart("Throughput against speed along the clients of closed loads", { height: 420, file: "curves" });
  const draw = (run) => { drawFit(chart, run, figure.value); drawCurves(curves, run); };
  const figure = choice("latency", FIGURES, () => draw(shownRun()));
  const note = make("p", { class: "note" }, "The diagonal marks exact predictions. Thick bars are 80 % intervals, thin bars 95 % intervals.");
  return { node: viewNode([figure], chart.node, note, curves.node), select: draw };
}

/** The predictions of the selected program that have both a predicted and an observed figure, and all others. */
function fitRows(run, figure) {
  return predictionsOf(run, selectedAt()).map((p) => ({ ...p, ...p.figures[figure], experiment: p.experiment })).filter((p) => isNumber(p.predicted_ms) || isNumber(p.observed_ms));
}

function drawFit(chart, run, figure) {
  const rows = fitRows(run, figure);
  const points = rows.filter((r) => r.predicted_ms > 0 && r.observed_ms > 0);
  const { problem, command } = detailOf(run, state.id);
  if (!points.length) {
    const why = run.isScored(selectedAt()) ? [problem ?? `No run has an observed ${FIGURES[figure]}.`, command] : ["This program was rejected, so there is nothing to compare."];
    return chart.draw({ empty: missing(...why), table: rows.length ? () => fitTable(rows, figure) : null });
  }
  const ends = points.flatMap((r) => [r.observed_ms, r.predicted_ms, r.low95, r.high95]).filter((x) => x > 0);
  const [low, high] = [Math.min(...ends) / 1.2, Math.max(...ends) * 1.2];
  const source = problem ? `Predicted means follow from the errors of the search. ${problem}` : "";
  chart.draw({
    traces: [
      { type: "scatter", mode: "lines", x: [low, high], y: [low, high], hoverinfo: "skip", showlegend: false, line: { color: colour("soft"), width: 1, dash: "dash" } },
      ...byUse(points).flatMap(fitTraces),
    ],
    layout: { xaxis: logRangeAxis(`observed ${FIGURES[figure]} (ms)`, low, high), yaxis: logRangeAxis(`predicted ${FIGURES[figure]} (ms)`, low, high), showlegend: true, uirevision: `${state.id} ${figure}` },
    summary: `Program ${state.id}, ${FIGURES[figure]}: mean absolute error ${meanErrors(points)}. ${source}`,
    table: () => fitTable(rows, figure),
  });
}

/** A line for each run whose clients wait for answers, with what was measured; hidden where there is none. */
function drawCurves(chart, run) {
  const { detail } = detailOf(run, state.id);
  const shown = detail?.curves ?? [];
  chart.node.hidden = !shown.length;
  if (!shown.length) return;
  const traces = shown.flatMap(({ experiment, predicted, measured }, k) => [["lines+markers", predicted, "predicted"], ["markers", measured, "measured"]].map(([mode, points, word]) => ({
    type: "scatter", mode, name: shortName(experiment), legendgroup: experiment, showlegend: word === "predicted", hoverinfo: "text",
    x: points.map((p) => p.client_tokens_per_s), y: points.map((p) => p.gpu_tokens_per_s), line: { color: palette()[k % palette().length], width: 1.5 },
    marker: { color: palette()[k % palette().length], size: word === "measured" ? 11 : 5, symbol: word === "measured" ? "x" : "circle" },
    text: points.map((p) => said(experiment, `${word}, ${counted(p.level, "client")}`, `${number(p.client_tokens_per_s, 3)} tokens/s each, ${number(p.gpu_tokens_per_s, 4)} per GPU`)),
  })));
  chart.draw({
    traces, layout: { xaxis: axis("tokens/s of each client", { rangemode: "tozero" }), yaxis: axis("tokens/s per GPU", { rangemode: "tozero" }), showlegend: true, uirevision: `${state.id}` },
    summary: `Program ${state.id}, ${counted(shown.length, "closed load")}: more clients, more tokens per GPU, and slower for each.`,
    table: () => table("Throughput and speed", [
      { head: "run", long: true, cell: (r) => r.experiment }, { head: "clients", number: true, cell: (r) => `${r.level}` }, { head: "kind", cell: (r) => r.word },
      { head: "tokens/s of each", number: true, cell: (r) => number(r.client_tokens_per_s, 3) }, { head: "tokens/s per GPU", number: true, cell: (r) => number(r.gpu_tokens_per_s, 4) },
    ], shown.flatMap(({ experiment, predicted, measured }) => [...predicted.map((p) => ({ ...p, experiment, word: "predicted" })), ...measured.map((p) => ({ ...p, experiment, word: "measured" }))])),
  });
}

/** `1.30 % on 20 fitted runs, 4.2 % on ...` */
function meanErrors(points) {
  const known = points.filter((r) => isNumber(r.error_pct));
  const groups = [["fitted", known.filter((r) => r.fitted)], ["other", known.filter((r) => !r.fitted)]].filter(([, rows]) => rows.length);
  return groups.map(([name, rows]) => `${percent(rows.reduce((sum, r) => sum + Math.abs(r.error_pct), 0) / rows.length)} on ${counted(rows.length, `${name} run`)}`).join(", ") || UNKNOWN;
}

function fitTraces({ name, rows, marker }) {
  const c = marker.color;
  const interval = (level, thickness, opacity) => {
    const known = rows.filter((r) => isNumber(r[`low${level}`]) && isNumber(r[`high${level}`]));
    return known.length ? [{
      type: "scatter", mode: "markers", showlegend: false, hoverinfo: "skip", x: known.map((r) => r.observed_ms), y: known.map((r) => r.predicted_ms), marker: { size: 1, color: c, opacity },
      error_y: { type: "data", symmetric: false, array: known.map((r) => Math.max(0, r[`high${level}`] - r.predicted_ms)), arrayminus: known.map((r) => Math.max(0, r.predicted_ms - r[`low${level}`])), color: c, thickness, width: 0 },
      opacity,
    }] : [];
  };
  return [
    ...interval(95, 1.2, 0.7), ...interval(80, 5, 0.35),
    {
      type: "scatter", mode: "markers", name, x: rows.map((r) => r.observed_ms), y: rows.map((r) => r.predicted_ms), hoverinfo: "text", marker,
      text: rows.map((r) => said(r.experiment, `observed ${number(r.observed_ms, 4)} ms, predicted ${number(r.predicted_ms, 4)} ms`, `error ${signed(r.error_pct)} %`)),
    },
  ];
}

function fitTable(rows, figure) {
  const use = { true: "fitted", false: "predicted" };
  return table(`Observed and predicted ${FIGURES[figure]}`, [
    { head: "run", long: true, cell: (r) => r.experiment }, { head: "use", cell: (r) => use[r.fitted] ?? "unknown" },
    { head: "observed (ms)", number: true, cell: (r) => number(r.observed_ms, 4) }, { head: "predicted (ms)", number: true, cell: (r) => number(r.predicted_ms, 4) },
    { head: "error (%)", number: true, cell: (r) => signed(r.error_pct) },
    { head: "80 % interval (ms)", number: true, cell: (r) => interval(r.low80, r.high80) }, { head: "95 % interval (ms)", number: true, cell: (r) => interval(r.low95, r.high95) },
  ], rows);
}

const interval = (low, high) => (isNumber(low) && isNumber(high) ? `${number(low, 4)} to ${number(high, 4)}` : UNKNOWN);
