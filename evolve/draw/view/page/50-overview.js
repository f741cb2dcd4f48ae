"use strict";

// Overview: how the run stands, its champion, and how much better that is than the baselines.

VIEWS.push({ section: "Search", key: "overview", title: "Overview", make: makeOverview });

function makeOverview() {
  const tiles = make("dl", { class: "tiles" });
  const progress = new Chart("Champion so far", { height: 260, file: "champion" });
  const champion = make("div", { class: "stack" });
  const [baselines, times] = [make("div"), make("div")];
  return {
    node: viewNode([], tiles, progress.node, card("Champion", champion), make("div", { class: "pair" }, card("Beside the baselines", baselines), card("CPU time by stage", times))),
    update(run) {
      fill(tiles, overviewTiles(run));
      fill(champion, championText(run));
      drawProgress(progress, run);
      fill(baselines, baselinesTable(run));
      fill(times, stageTimes(run));
    },
  };
}

const tile = (name, value, note = "") => make("div", { class: "tile" }, make("dt", {}, name), make("dd", {}, value, " ", make("small", {}, note)));

function overviewTiles(run) {
  const { totals } = run;
  const rejected = Object.values(totals.rejected).reduce((sum, r) => sum + r.count, 0);
  const i = run.at(run.champion);
  const measure = (name) => percent(i === undefined ? null : run.value(name, i));
  const bar = make("progress", { max: run.budget || 1, value: Math.min(totals.fitted, run.budget || 1), "aria-label": "candidates fitted of the budget" });
  return [
    make("div", { class: "tile" }, make("dt", {}, "fitted candidates"), make("dd", {}, count(totals.fitted), " ", make("small", {}, `of ${count(run.budget)}`), bar)),
    tile("proposals", count(totals.proposals)), tile("scored", count(totals.scored)), tile("rejected", count(rejected)),
    tile("CPU time", duration(cpuTotal(run))), tile("islands", count(run.islands), `seed ${run.seed}`),
    tile("mean error", measure("mean_error"), "champion"), tile("leave-group-out error", measure("group_out"), "champion"),
    ...Object.entries(LATENCIES).map(([name, text]) => tile(`${text} error`, measure(name), "champion")),
  ];
}

/** CPU seconds of all assessments, null where unknown. */
function cpuTotal(run) {
  if (run.cpuSeconds && !run.thinned) return run.cpuSeconds[run.size - 1];
  const stages = Object.values(run.cpu_s_by_stage ?? {}).filter(isNumber);
  return stages.length ? stages.reduce((a, b) => a + b, 0) : null;
}

function championText(run) {
  const i = run.at(run.champion);
  if (i === undefined) return [missing("There is no champion yet: no candidate was scored.", `evolve resume ${run.name}`)];
  return [
    make("p", {}, "Program ", idButton(run.champion), ` · ${sizeText(run, i)} read · proposed by ${run.operator(i)}`),
    make("p", { class: "note" }, `Rule: ${run.rule}.`.replace("..", ".")),
    make("p", { class: "note" }, `Errors of candidates, here and in the tiles, are as the search measured them: arrival seed${run.arrival_seeds.length === 1 ? "" : "s"} ${run.arrival_seeds.join(", ")}. Predictions, as in Fit, and the baselines are means over arrival seeds 1 to 3.`),
    run.thinned ? make("p", { class: "note" }, `This page has ${count(run.thinned.kept)} of ${count(run.thinned.of)} candidates: ${run.thinned.rule}. Totals count all.`) : null,
    programText(run.details[run.champion]?.text ?? run.candidates.text[i] ?? "", `Text of the champion, program ${run.champion}`),
  ];
}

function drawProgress(chart, run) {
  const best = run.best.filter((b) => isNumber(b.mean_error));
  if (!best.length) return chart.draw({ empty: nothingScored(run) });
  const line = (name, value, k) => stepTrace(name, best.map((b) => b.after), best.map(value), k, `%{y:.2f} % ${name} after %{x:,} proposals<extra></extra>`);
  const last = best.at(-1);
  const i = run.at(run.champion);
  // An ensemble of near-optimal programs decides at the end of a search alone; it may choose another program.
  const other = i !== undefined && run.value("mean_error", i) !== last.mean_error ? ` Program ${run.champion} was chosen when the search was over, as the rule below says: its errors are those above.` : "";
  chart.draw({
    traces: [line("mean error", (b) => b.mean_error, 0), line("group-out error", (b) => b.group_out, 1)],
    layout: { xaxis: axis("proposals"), yaxis: logAxis("error of the champion (%)"), showlegend: true },
    summary: `After ${count(last.after)} proposals the champion so far has a mean error of ${percent(last.mean_error)} and a leave-group-out error of ${percent(last.group_out)}.${other}`,
    table: () => table("The champion so far", [
      { head: "proposals", number: true, cell: (b) => count(b.after) }, { head: "mean error (%)", number: true, cell: (b) => plainPercent(b.mean_error) },
      { head: "leave-group-out error (%)", number: true, cell: (b) => plainPercent(b.group_out) },
    ], changesOnly(best)),
  });
}

/** The points of the champion's history where its errors changed. */
const changesOnly = (best) => best.filter((b, k) => k === 0 || k === best.length - 1 || b.mean_error !== best[k - 1].mean_error || b.group_out !== best[k - 1].group_out);

function baselinesTable(run) {
  const rows = Object.entries(run.baselines).map(([name, errors]) => ({ name, ...errors }));
  if (!Object.keys(run.baselines).length) return missing("This run has no baselines yet. Print its report to compute them.", `evolve resume ${run.name} --all`);
  return table("Mean absolute errors on the fitted runs, in percent, over arrival seeds 1 to 3", [{ head: "answer", cell: (r) => r.name }, ...latencyColumns((r) => r)], rows);
}

/** Columns of E2E, TTFT and ITL in percent. */
const latencyColumns = (of) => Object.entries(LATENCIES).map(([name, text]) => ({ head: `${text} (%)`, number: true, cell: (row) => plainPercent(of(row)?.[name]) }));

function stageTimes(run) {
  const rows = Object.entries(run.cpu_s_by_stage ?? {}).filter(([, s]) => isNumber(s)).sort((a, b) => b[1] - a[1]);
  if (!rows.length) return missing("This run has no CPU times: an older release made it, or someone copied it without them.");
  const total = rows.reduce((sum, [, s]) => sum + s, 0);
  return table("CPU time of all assessments", [
    { head: "stage", cell: (r) => r[0] }, { head: "CPU time (s)", number: true, cell: (r) => number(r[1]) }, { head: "share (%)", number: true, cell: (r) => number((100 * r[1]) / total, 2) },
  ], rows);
}
