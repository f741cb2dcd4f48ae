"use strict";

// History: the lowest errors so far, and all candidates, by candidate or by CPU second.

VIEWS.push({ section: "Search", key: "history", title: "History", make: makeHistory, lacks: lacksScores });

const LINES = { mean_error: "mean error", group_out: "group-out error" };
const MOST_FAINT = 3000; // points of the background; more take longer to draw than they tell

function makeHistory() {
  const chart = new Chart("Lowest errors so far, and every candidate", { height: 500, file: "history" });
  const redraw = () => { drawHistory(chart, shownRun(), along.value, points.value, scale.value); chart.mark(place(shownRun())); };
  const along = choice("along", { order: "candidates", cpu: "CPU seconds" }, redraw);
  const points = choice("points", { mean_error: "mean error", group_out: "leave-group-out error", e2e: "E2E error" }, redraw);
  const scale = choice("show", { near: "near the best", all: "all" }, redraw);
  const place = (run) => {
    const i = selectedAt();
    return i === undefined ? null : [abscissa(run, along.value, i), run.value(points.value, i)];
  };
  return { node: viewNode([along, points, scale], chart.node), update: redraw, select: (run) => chart.mark(place(run)) };
}

/** Where a candidate lies along the history. */
const abscissa = (run, along, i) => (along === "cpu" ? run.cpuSeconds?.[i] ?? null : run.order(i));

function drawHistory(chart, run, along, measure, scale) {
  if (along === "cpu" && !run.cpuSeconds) {
    return chart.draw({ empty: missing("This run has no CPU times of its candidates: an older release made it. Choose “candidates” above.") });
  }
  const x = (i) => abscissa(run, along, i);
  const faint = run.scored.filter((i) => isNumber(run.value(measure, i)));
  const shown = thinned(faint, MOST_FAINT);
  const all = programTrace(run, shown, x, (i) => run.value(measure, i), {
    name: `candidates (${LINES[measure] ?? LATENCIES[measure]})`, marker: { color: colour("faint"), size: 5, opacity: 0.55 },
  });
  const lines = Object.entries(LINES).map(([name, text], k) => lowestTrace(run, name, `lowest ${text}`, k, x));
  const summary = `${lowestText(run)} ${shown.length < faint.length ? `${count(shown.length)} of ${count(faint.length)} candidates are drawn.` : ""}`;
  chart.draw({
    traces: [all, ...lines.filter((trace) => trace.x.length)],
    layout: {
      xaxis: axis(along === "cpu" ? "CPU time of all assessments so far (s)" : run.thinned ? "number of the proposal" : "proposals", { rangemode: "tozero", automargin: false }),
      yaxis: logRangeAxis("error (%)", ...historyRange(run, measure, scale), { automargin: false }), margin: roomyMargin(), showlegend: true, uirevision: along + scale,
    },
    summary,
    table: () => programTable("Candidates that lowered the mean error", run, gains(run, "mean_error")),
  });
}

function lowestTrace(run, name, text, k, x) {
  const series = lowestSoFar(run, name);
  const at = turns(series);
  return stepTrace(text, at.map(x), at.map((i) => series[i]), k, `${text} %{y:.2f} %<extra></extra>`);
}

/** Positions of the candidates that set a new lowest value. */
const gains = (run, name) => {
  const series = lowestSoFar(run, name);
  return range(run.size).filter((i) => series[i] !== null && (i === 0 || series[i] !== series[i - 1]));
};

/** The range of the errors: of all of them, or of the lines and of most candidates. */
function historyRange(run, measure, scale) {
  const points = run.scored.map((i) => run.value(measure, i));
  const lines = Object.keys(LINES).map((name) => lowestSoFar(run, name).at(-1));
  if (scale === "all") return rangeOf([...points, ...lines]);
  const [low, high] = rangeOf(points, 0.9);
  return [Math.min(low, rangeOf(lines)[0]), Math.max(high, rangeOf(lines)[1])];
}

function lowestText(run) {
  const last = (name) => lowestSoFar(run, name).at(-1);
  return `Lowest of the consistent programs: mean error ${percent(last("mean_error"))}, group-out error ${percent(last("group_out"))}.`;
}
