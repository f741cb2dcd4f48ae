"use strict";

// Rejects: how many proposals ended at which stage of the cascade, and why.

VIEWS.push({
  section: "Search", key: "rejects", title: "Rejects", make: makeRejects,
  lacks: (run) => (run.totals.proposals ? null : missing("Nothing has been proposed yet.", `evolve resume ${run.name}`)),
});

function makeRejects() {
  const chart = new Chart("Where proposals ended", { height: 320, file: "rejects" });
  const examples = make("div", { class: "view" });
  return { node: viewNode([], chart.node, examples), update: (run) => { drawRejects(chart, run); fill(examples, rejectExamples(run)); } };
}

const rejectedStages = (run) => Object.entries(run.totals.rejected).sort((a, b) => b[1].count - a[1].count);

function drawRejects(chart, run) {
  const rows = [["scored", { count: run.totals.scored }], ...rejectedStages(run)];
  const share = (n) => (100 * n) / run.totals.proposals;
  chart.draw({
    traces: [{
      type: "bar", orientation: "h", y: rows.map((_, k) => k), x: rows.map((r) => r[1].count), marker: { color: rows.map((_, k) => palette()[k ? 1 : 0]) }, text: rows.map((r) => `${count(r[1].count)} (${number(share(r[1].count), 2)} %)`),
      textposition: "auto", hoverinfo: "skip", cliponaxis: false,
    }],
    layout: { xaxis: axis("proposals"), yaxis: axis("", { tickvals: rows.map((_, k) => k), ticktext: rows.map((r) => shortName(r[0], 24)), autorange: "reversed" }), bargap: 0.25 },
    height: 90 + 34 * rows.length,
    summary: `Of ${counted(run.totals.proposals, "proposal")}, ${count(run.totals.scored)} were scored and ${count(run.totals.proposals - run.totals.scored)} rejected.`,
    table: () => table("Proposals by where they ended", [
      { head: "stage", cell: (r) => r[0] }, { head: "proposals", number: true, cell: (r) => count(r[1].count) }, { head: "share (%)", number: true, cell: (r) => number(share(r[1].count), 2) },
    ], rows),
  });
}

function rejectExamples(run) {
  const stages = rejectedStages(run);
  if (!stages.length) return missing("Nothing was rejected.");
  return stages.map(([stage, { count: n, examples }]) => card(
    `${stage}: ${counted(n, "proposal")}`,
    table(`Examples of ${stage}`, [
      { head: "program", cell: (e) => (run.at(e.id) === undefined ? String(e.id) : idButton(e.id)) },
      { head: "proposed by", cell: (e) => (run.at(e.id) === undefined ? UNKNOWN : run.operator(run.at(e.id))) }, { head: "why", long: true, cell: (e) => e.why ?? UNKNOWN },
    ], examples, { id: (e) => e.id }),
  ));
}
