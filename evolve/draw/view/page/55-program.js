"use strict";

// Program: its text, its constants, and what its terms contribute to a step.

VIEWS.push({ section: "Search", key: "program", title: "Program", make: makeProgram, lacks: noProgram });

function makeProgram() {
  const shares = new Chart("Time of a decode step by term", { height: 420, file: "shares" });
  const deployment = choice("deployment", {}, () => draw());
  const unit = choice("as", { us: "microseconds", share: "percent of the step" }, () => draw());
  const controls = controlRow([deployment, unit]);
  const [head, text, constants] = [make("section", { class: "card" }), make("div"), make("div")];
  const node = viewNode([], head, card("Text", text), card("Constants", constants), controls, shares.node);
  const draw = () => drawShares(shares, shownRun(), Number(deployment.value || 0), unit.value);
  const select = (run) => {
    const { detail, problem, command } = detailOf(run, state.id);
    fill(head, programHead(run, detail, problem, command));
    fill(text, programText(detail?.text ?? run.candidates.text[selectedAt()] ?? "(The text is not in this page.)", `Text of program ${state.id}`));
    fill(constants, constantsTable(run, detail));
    deployment.offer(Object.fromEntries((detail?.shares ?? []).map((s, k) => [k, s.deployment])));
    controls.hidden = !detail?.shares?.length;
    draw();
  };
  return { node, select };
}

function programHead(run, detail, problem, command) {
  const i = selectedAt();
  const warnings = detail?.warnings ?? [];
  return [
    make("h3", {}, `Program ${state.id}`, badges(run, i)),
    make("p", {}, detail?.counts ?? `${sizeText(run, i)} read`),
    problem ? make("p", { class: "note" }, problem, " ", command ? make("code", {}, command) : null) : null,
    warnings.length ? make("details", {}, make("summary", {}, `${counted(warnings.length, "remark")} on its predictions`), make("ul", { class: "warnings" }, warnings.map((w) => make("li", {}, w)))) : null,
  ];
}

/** Constants as the detail has them; without one, as the text declares them. */
function constantsTable(run, detail) {
  const rows = detail?.constants ?? declared(run.candidates.text[selectedAt()] ?? "");
  if (!rows.length) return missing("This program has no constants.");
  const columns = [
    { head: "constant", cell: (c) => (c.method ? `${c.method}.${c.name}` : c.name) },
    { head: "value", number: true, cell: (c) => number(c.value, 5) }, { head: "unit", cell: (c) => c.unit ?? UNKNOWN },
  ];
  if (!detail) return table("Constants as the text declares them", columns, rows);
  return table("Constants with bounds and standard errors", [
    ...columns,
    { head: "standard error", number: true, cell: (c) => number(c.standard_error, 2) },
    { head: "lowest", number: true, cell: (c) => number(c.low) }, { head: "highest", number: true, cell: (c) => number(c.high) },
    { head: "remark", long: true, cell: remark },
  ], rows);
}

function remark(c) {
  const remarks = [c.at_bound === "low" ? "at its lowest" : c.at_bound === "high" ? "at its highest" : null, c.identified === false ? "not identified by the data" : null];
  return remarks.filter(Boolean).join(", ") || UNKNOWN;
}

/** The constants that the text of a program declares: `name: unit[low, high] = value`. */
function declared(text) {
  return [...text.matchAll(/(\w+): ([\w/*^.]+)(?:\[[^\]]*\])? = ([-+.\de]+)/g)].map(([, name, unit, value]) => ({ name, unit, value: Number(value) }));
}

function drawShares(chart, run, k, unit) {
  const { detail, problem, command } = detailOf(run, state.id);
  const shares = detail?.shares?.[k];
  if (!shares) return chart.draw({ empty: missing(problem ?? "This program has no shares of a step.", command) });
  const totals = shares.batch.map((_, j) => shares.us.reduce((sum, row) => sum + (row[j] ?? 0), 0));
  const order = range(shares.terms.length).sort((a, b) => shares.us[b].at(-1) - shares.us[a].at(-1));
  const scaled = (row) => (unit === "share" ? row.map((x, j) => (totals[j] ? (100 * x) / totals[j] : 0)) : row);
  const suffix = unit === "share" ? "%" : "µs";
  const traces = order.map((t, n) => ({
    type: "scatter", mode: "lines", stackgroup: "terms", name: wrapped(shares.terms[t], NARROW.matches ? 40 : 64), x: shares.batch, y: scaled(shares.us[t]), line: { width: 1, color: palette()[n % palette().length] },
    fillpattern: n >= palette().length ? { shape: ["/", "\\", ".", "x"][Math.floor(n / palette().length - 1) % 4], solidity: 0.25 } : undefined,
    hovertemplate: `${hoverName(shares.terms[t], 60)}<br>batch %{x}: %{y:.3~s} ${suffix}<extra></extra>`, hoveron: "points",
  }));
  const last = order[0];
  chart.draw({
    traces,
    layout: {
      xaxis: axis("requests in the batch", { type: "log", tickvals: shares.batch, ticktext: shares.batch.map(String) }), yaxis: axis(unit === "share" ? "share of the step (%)" : "step time (µs)", { rangemode: "tozero" }),
      showlegend: true, legend: { orientation: "h", y: -0.22, yanchor: "top", x: 0, font: { size: 11 }, traceorder: "normal" }, uirevision: unit,
    },
    height: 400 + 16 * order.reduce((sum, t) => sum + Math.ceil(shares.terms[t].length / (NARROW.matches ? 30 : 56)), 0),
    summary: `${detail.shares_note ? `${detail.shares_note[0].toUpperCase()}${detail.shares_note.slice(1)}. ` : ""}At a batch of ${shares.batch.at(-1)} a step takes ${number(totals.at(-1))} µs, and the largest term is ${shares.terms[last]} (${number((100 * shares.us[last].at(-1)) / totals.at(-1), 2)} %).`,
    table: () => table(`Step time by term, in ${unit === "share" ? "percent of the step" : "microseconds"}`, [
      { head: "term", long: true, cell: (t) => shares.terms[t] }, ...shares.batch.map((b, j) => ({ head: `batch ${b} (${suffix})`, number: true, cell: (t) => number(scaled(shares.us[t])[j]) })),
    ], order),
  });
}
