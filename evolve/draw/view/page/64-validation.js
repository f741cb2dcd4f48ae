"use strict";

// Validation: held-out errors by kind of fold, by fold and by run, beside the baselines.

VIEWS.push({
  section: "Compare", key: "validation", title: "Validation", make: makeValidation,
  lacks: (run) => (run.validation?.kinds?.length ? null : missing("This run has no held-out errors yet. Repeat the search without the runs of each fold.", `evolve validate ${run.name}`)),
});

function makeValidation() {
  const means = new Chart("Held-out errors by kind of fold", { height: 360, file: "validation" });
  const runs = new Chart("Held-out errors of every run", { height: 520, file: "held-out" });
  const draw = () => drawValidation(shownRun(), { means, runs, kinds, folds, kind: Number(kind.value || 0), latency: latency.value });
  const kind = choice("folds", {}, draw);
  const latency = choice("latency", LATENCIES, draw);
  const [kinds, coverage, folds] = range(3).map(() => make("section", { class: "card" }));
  return {
    node: viewNode([], means.node, kinds, coverage, controlRow([kind, latency]), runs.node, folds),
    update(run) {
      kind.offer(Object.fromEntries(run.validation.kinds.map((k, n) => [n, `without each of: ${kindTitle(k)}`])));
      coverage.hidden = !run.validation.coverage?.length;
      fill(coverage, make("h3", {}, "Coverage of the intervals on held-out runs"), coverageTable(run.validation.coverage ?? []));
      draw();
    },
  };
}

function drawValidation(run, { means, runs, kinds, folds, kind, latency }) {
  const all = run.validation.kinds;
  drawKinds(means, all);
  fill(kinds, make("h3", {}, "Kinds of folds"), kindsTable(run, all));
  drawHeldOut(runs, all[kind], latency);
  folds.hidden = !all[kind].folds.length;
  fill(folds, make("h3", {}, `Folds: ${kindTitle(all[kind])}`), foldsTable(run, all[kind]));
}

/** What the folds of a kind leave out. */
const kindTitle = ({ kind }) => ({ tp: "TP degrees" })[kind] ?? kind;

function drawKinds(chart, kinds) {
  const names = kinds.map((k) => plain(kindTitle(k)));
  chart.draw({
    traces: Object.entries(LATENCIES).map(([name, text], n) => ({
      type: "bar", name: text, x: range(kinds.length), y: kinds.map((k) => k.mean_abs_error_pct?.[name] ?? null), marker: { color: palette()[n] }, hovertemplate: `${text} %{y:.2f} %<extra></extra>`,
    })),
    layout: { xaxis: axis("", { tickvals: range(kinds.length), ticktext: names, tickangle: NARROW.matches ? -45 : 0 }), yaxis: axis("mean absolute error (%)", { rangemode: "tozero" }), barmode: "group", bargap: 0.3, showlegend: true },
    summary: kinds.map((k) => `${kindTitle(k)}: E2E ${percent(k.mean_abs_error_pct?.e2e)}`).join("; "),
    table: null,
  });
}

function kindsTable(run, kinds) {
  const measured = kinds.some((k) => isNumber(k.coverage_80));
  return table(`Held-out errors of validation ${run.validation.call}${run.validation.forms ? `: ${run.validation.forms}` : ""}`, [
    { head: "held out", cell: kindTitle }, ...(kinds.some((k) => k.folds.length) ? [{ head: "folds", number: true, cell: (k) => count(k.folds.length) }] : []), ...latencyColumns((k) => k.mean_abs_error_pct),
    ...(kinds.some((k) => k.bias_pct) ? Object.entries(LATENCIES).map(([name, text]) => ({ head: `${text} bias (%)`, number: true, cell: (k) => signed(k.bias_pct?.[name]) })) : []),
    ...(measured ? [coverageColumn(80, (k) => k.coverage_80), coverageColumn(95, (k) => k.coverage_95)] : []),
  ], kinds);
}

/** A column with the share of figures that are inside their intervals. */
const coverageColumn = (level, of) => ({ head: `inside their ${level} % intervals (%)`, number: true, cell: (row) => (isNumber(of(row)) ? number(100 * of(row)) : UNKNOWN) });

const CLASSES = { inside: "inside what was fitted", outside: "outside of what was fitted", saturated: "overloaded: a queue grew" };

function coverageTable(rows) {
  return table("Share of held-out figures inside their intervals", [
    { head: "deployment and load", cell: (r) => CLASSES[r.class] ?? r.class }, { head: "figure", cell: (r) => FIGURES[r.figure] ?? r.figure }, { head: "runs", number: true, cell: (r) => count(r.runs) },
    coverageColumn(80, (r) => r.covered_80), coverageColumn(95, (r) => r.covered_95),
  ], rows);
}

/** The rows of all folds of a kind, each with its fold. */
const heldOutRows = (kind) => kind.folds.flatMap((fold) => fold.rows.map((row) => ({ ...row, fold: fold.name })));

function drawHeldOut(chart, kind, latency) {
  const rows = heldOutRows(kind);
  if (!rows.length) return chart.draw({ empty: missing("This page has no errors by run of these folds. The table above has their means.") });
  const answers = [...new Set(rows.flatMap((r) => Object.keys(r.baselines ?? {})))];
  const wide = NARROW.matches ? 22 : 44;
  const trace = (name, value, k, symbol) => ({
    type: "scatter", mode: "markers", name: plain(name), y: range(rows.length), x: rows.map((r) => value(r) ?? null), marker: { symbol, size: k ? 8 : 11, color: palette()[k % palette().length], line: { width: 1.5, color: k ? palette()[k % palette().length] : colour("card") } },
    hoverinfo: "text", text: rows.map((r) => said(`${name}: ${signed(value(r))} %`, r.experiment, `fold ${r.fold}`)),
  });
  const symbols = ["x-thin", "diamond-open", "square-open", "triangle-up-open", "cross-thin", "circle-open", "star-open"];
  const ours = rows.map((r) => Math.abs(r[latency])).filter(isNumber);
  chart.draw({
    traces: [...answers.map((name, k) => trace(name, (r) => r.baselines?.[name]?.[latency], k + 1, symbols[k % symbols.length])), trace("held out", (r) => r[latency], 0, "circle")],
    layout: {
      xaxis: axis(`${LATENCIES[latency]} error (%)`, { zerolinecolor: colour("strong-line"), zerolinewidth: 1.5, range: heldOutRange(rows, latency) }),
      yaxis: axis("", { tickvals: range(rows.length), ticktext: rows.map((r) => shortName(r.experiment, wide)), autorange: "reversed" }), showlegend: true, uirevision: `${kind.kind} ${latency}`,
    },
    height: 120 + 24 * rows.length,
    summary: ours.length ? `Mean absolute ${LATENCIES[latency]} error of runs held out: ${percent(ours.reduce((a, b) => a + b, 0) / ours.length)}; the largest is ${percent(Math.max(...ours))}. Baselines beyond the axis are in the table.` : "",
    table: () => table(`Held-out ${LATENCIES[latency]} errors in percent`, [
      { head: "run", long: true, cell: (r) => r.experiment }, { head: "fold", long: true, cell: (r) => r.fold }, { head: "held out (%)", number: true, cell: (r) => signed(r[latency]) },
      ...answers.map((name) => ({ head: `${name} (%)`, number: true, cell: (r) => signed(r.baselines?.[name]?.[latency]) })),
    ], rows),
  });
}

/** A range that shows our errors and most of the baselines': some are off by a hundred percent. */
function heldOutRange(rows, latency) {
  const size = (x) => (isNumber(x) ? Math.abs(x) : 0);
  const ours = Math.max(1, ...rows.map((r) => size(r[latency])));
  const theirs = Math.max(0, ...rows.flatMap((r) => Object.values(r.baselines ?? {}).map((k) => size(k?.[latency]))));
  const end = 1.1 * Math.max(ours, Math.min(theirs, 3 * ours));
  return [-end, end];
}

function foldsTable(run, kind) {
  return table(run.validation.forms ? "Folds, and the recorded form that fits best without each" : "Folds, and the champion of the search without each", [
    { head: "fold", long: true, cell: (f) => f.name }, { head: "runs", number: true, cell: (f) => count(f.rows.length) }, ...latencyColumns((f) => f.mean_abs_error_pct),
    { head: "candidates", number: true, cell: (f) => count(f.champion?.candidates) }, { head: "its champion", cell: (f) => (f.champion ? foldChampion(f) : UNKNOWN) },
  ], kind.folds);
}

const foldChampion = (fold) => make("details", {}, make("summary", {}, `program ${fold.champion.id}`), programText(fold.champion.text ?? "", `Champion of fold ${fold.name}`));
