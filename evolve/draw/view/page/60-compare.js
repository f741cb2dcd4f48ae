"use strict";

// Runs: those of the page, one line each, and their median with its quartiles. Runs on different data are in different charts.

VIEWS.push({ section: "Compare", key: "compare", title: "Runs", make: makeCompare, shown: () => state.runs.length > 1 });

const ENOUGH_FOR_MEDIAN = 3;
const GRID_POINTS = 200; // of the median's line

function makeCompare() {
  const charts = [...runsByData().values()].map((runs, k, all) => [runs, new Chart(`Lowest error so far, by run${all.length > 1 ? `: data ${runs[0].data}` : ""}`, { height: 480, file: `compare-${k + 1}` })]);
  const [differ, rows] = [make("div"), make("div")];
  const draw = () => charts.forEach(([runs, chart]) => drawCompare(chart, runs, measure.value));
  const measure = choice("lowest", LINES, draw);
  if (state.runs.some((run) => isNumber(lowestSoFar(run, "group_out").at(-1)))) measure.value = "group_out";
  return {
    node: viewNode([measure], differ, charts.map(([, chart]) => chart.node), card("Runs", rows)),
    update() {
      fill(differ, differentData());
      draw();
      fill(rows, runsTable(state.runs));
    },
  };
}

/** The runs of the page by the data that they fit. */
const runsByData = () => Map.groupBy(state.runs, (run) => run.data);

/** Which runs fit which data, if not all fit the same. */
function differentData() {
  const groups = [...runsByData()].map(([data, runs]) => `${runs.map((run) => run.name).join(", ")} fitted ${counted(runs[0].fitted.length, "measured run")} (data ${data})`);
  return groups.length > 1 ? make("p", { class: "differ" }, `These searches fitted different data, so compare no errors across the charts: ${groups.join("; ")}.`) : null;
}

/** The steps of the lowest error of a run: [proposals, error]. */
function stepsOf(run, measure) {
  const series = lowestSoFar(run, measure);
  return turns(series).map((i) => [run.order(i), series[i]]);
}

function drawCompare(chart, runs, measure) {
  const lines = runs.map((run) => ({ run, steps: stepsOf(run, measure) })).filter((line) => line.steps.length);
  if (!lines.length) return chart.draw({ empty: missing(`No run of this page has a program with a known ${LINES[measure]}.`) });
  const traces = lines.map(({ run, steps }, k) => ({
    type: "scatter", mode: steps.length > 1 ? "lines" : "markers", name: shortName(run.name, 40), x: steps.map((s) => s[0]), y: steps.map((s) => s[1]),
    line: { shape: "hv", width: lines.length >= ENOUGH_FOR_MEDIAN ? 1.4 : 2.5, color: palette()[k % palette().length], dash: ["solid", "dash", "dot", "dashdot"][Math.floor(k / palette().length) % 4] },
    hovertemplate: `${hoverName(run.name, 40)}: %{y:.2f} % after %{x:,} proposals<extra></extra>`,
  }));
  const finals = lines.map((l) => l.steps.at(-1)[1]).sort((a, b) => a - b);
  chart.draw({
    traces: [...(lines.length >= ENOUGH_FOR_MEDIAN ? medianTraces(lines) : []), ...traces],
    layout: { xaxis: axis("proposals", { rangemode: "tozero" }), yaxis: logAxis(`lowest ${MEASURES[measure]}`), showlegend: true, uirevision: measure },
    summary: `${counted(lines.length, "run")}; lowest at the end: ${finals.length > 1 ? `${percent(finals[0])} to ${percent(finals.at(-1))}, median ${percent(quantile(finals, 0.5))}` : percent(finals[0])}.`,
    table: () => table(`Lowest ${MEASURES[measure]} after shares of the proposals`, [
      { head: "run", long: true, cell: (l) => l.run.name }, ...[0.1, 0.25, 0.5, 0.75, 1].map((share) => ({ head: `after ${100 * share} %`, number: true, cell: (l) => plainPercent(valueAt(l.steps, share * l.steps.at(-1)[0])) })),
    ], lines),
  });
}

/** The value of steps at x: that of the last step not after it; null before the first. */
function valueAt(steps, x) {
  let value = null;
  for (const [at, y] of steps) {
    if (at > x) break;
    value = y;
  }
  return value;
}

/** The median of the runs and the band between their quartiles, where all of them have a value. */
function medianTraces(lines) {
  const [start, end] = [Math.max(...lines.map((l) => l.steps[0][0])), Math.min(...lines.map((l) => l.steps.at(-1)[0]))];
  if (start > end) return [];
  const xs = range(GRID_POINTS).map((k) => start + ((end - start) * k) / (GRID_POINTS - 1));
  const values = xs.map((x) => lines.map((l) => valueAt(l.steps, x)).sort((a, b) => a - b));
  const line = (p, more) => ({ type: "scatter", mode: "lines", x: xs, y: values.map((v) => quantile(v, p)), hoverinfo: "skip", ...more });
  return [
    line(0.25, { line: { width: 0 }, showlegend: false }), line(0.75, { line: { width: 0 }, fill: "tonexty", fillcolor: "rgba(128,140,150,0.28)", name: "quartiles" }),
    line(0.5, { line: { width: 4, color: colour("ink") }, name: "median", hoverinfo: "y" }),
  ];
}

function runsTable(runs) {
  const champion = (run, name) => (run.at(run.champion) === undefined ? null : run.value(name, run.at(run.champion)));
  return table("Runs of this page", [
    { head: "run", long: true, cell: (run) => run.name }, { head: "data", cell: (run) => run.data }, { head: "state", cell: (run) => run.state }, { head: "seed", number: true, cell: (run) => String(run.seed) },
    { head: "proposals", number: true, cell: (run) => count(run.totals.proposals) }, { head: "fitted", number: true, cell: (run) => count(run.totals.fitted) }, { head: "CPU time", number: true, cell: (run) => duration(cpuTotal(run)) },
    { head: "champion", cell: (run) => (run.champion === null ? UNKNOWN : championButton(run)) }, ...["mean_error", "group_out"].map((name) => ({ head: MEASURES[name], number: true, cell: (run) => plainPercent(champion(run, name)) })),
    { head: "complexity", number: true, cell: (run) => count(champion(run, "complexity")) },
  ], runs);
}

/** A button that goes to a run and selects its champion. */
const championButton = (run) => button(String(run.champion), () => go({ run: state.runs.indexOf(run), id: run.champion }), { class: "id", "aria-label": `Select program ${run.champion} of ${run.name}` });
