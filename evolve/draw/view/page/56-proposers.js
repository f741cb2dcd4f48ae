"use strict";

// Proposers: who proposed how much and when, what was kept of it, and what that cost.

VIEWS.push({ section: "Search", key: "proposers", title: "Proposers", make: makeProposers, lacks: (run) => (run.size ? null : nothingScored(run)) });

const WINDOWS = 40;
const FEWEST_A_WINDOW = 10;

function makeProposers() {
  const proposed = new Chart("Shares of the proposals over time", { height: 400, file: "proposers" });
  const kept = new Chart("Programs kept over time", { height: 340, file: "kept" });
  const totals = make("div");
  const partly = make("p", { class: "note" });
  const note = make("p", { class: "note" }, "The bandit prefers operators whose programs are kept more often. A kept program took a place on an island when it was assessed; better ones may have displaced it since. A proposal of two operators counts half for each in the charts, and once for each in the table.");
  return {
    node: viewNode([], proposed.node, note, partly, kept.node, card("Totals", totals)),
    update(run) {
      const windows = proposalWindows(run);
      drawShare(proposed, windows);
      drawKept(kept, run, windows);
      partly.textContent = run.thinned ? `These figures count ${count(run.thinned.kept)} of ${count(run.thinned.of)} candidates: ${run.thinned.rule}.` : "";
      partly.hidden = !run.thinned;
      fill(totals, proposerTable(run));
    },
  };
}

/** The proposers of a proposal: both operators of `add+drop`, all seeds as one, or a language model. */
function proposersOf(operator) {
  if (operator.startsWith("llm:")) return [operator];
  return operator.split("+").map((name) => (name.startsWith("seed:") ? "seed" : name));
}

/** Counts by proposer: {proposals, fitted, kept, cpu, best}. */
function proposerTotals(run) {
  return run.once("proposers", () => {
    const totals = new Map();
    for (let i = 0; i < run.size; i++) {
      const names = proposersOf(run.operator(i));
      for (const name of new Set(names)) {
        if (!totals.has(name)) totals.set(name, { name, proposals: 0, fitted: 0, kept: 0, cpu: null, best: null });
        const t = totals.get(name);
        t.proposals += 1;
        t.fitted += run.candidates.key[i] ? 1 : 0;
        t.kept += run.candidates.kept[i] ? 1 : 0;
        if (isNumber(run.candidates.cpu_s[i])) t.cpu = (t.cpu ?? 0) + run.candidates.cpu_s[i] / new Set(names).size;
        const error = run.value("mean_error", i);
        if (isNumber(error) && run.candidates.consistent[i] !== false && (t.best === null || error < t.best)) t.best = error;
      }
    }
    return [...totals.values()].sort((a, b) => b.proposals - a.proposals);
  });
}

/** Shares by proposer in windows of equally many proposals: {size, ends, names, proposals[name][w], kept[name][w]}. */
function proposalWindows(run) {
  return run.once("windows", () => {
    const size = Math.max(FEWEST_A_WINDOW, Math.ceil(run.size / WINDOWS));
    const windows = Math.max(1, Math.ceil(run.size / size));
    const names = proposerTotals(run).map((t) => t.name);
    const shown = names.length > palette().length ? names.slice(0, palette().length - 1) : names;
    const labels = names.length > shown.length ? [...shown, "others"] : shown;
    const zeros = () => Object.fromEntries(labels.map((name) => [name, new Array(windows).fill(0)]));
    const [proposals, kept] = [zeros(), zeros()];
    for (let i = 0; i < run.size; i++) {
      const own = proposersOf(run.operator(i));
      for (const name of own) {
        const label = shown.includes(name) ? name : "others";
        proposals[label][Math.floor(i / size)] += 1 / own.length;
        kept[label][Math.floor(i / size)] += run.candidates.kept[i] ? 1 / own.length : 0;
      }
    }
    const ends = range(windows).map((w) => run.order(Math.min((w + 1) * size, run.size) - 1));
    return { size, ends, labels, proposals, kept };
  });
}

const windowColour = (k, label) => (label === "others" ? colour("strong-line") : palette()[k % palette().length]);

function drawShare(chart, { size, ends, labels, proposals }) {
  const totals = ends.map((_, w) => labels.reduce((sum, name) => sum + proposals[name][w], 0));
  const share = (name) => proposals[name].map((n, w) => (totals[w] ? (100 * n) / totals[w] : 0));
  const traces = labels.map((name, k) => ({
    type: "scatter", mode: ends.length > 1 ? "lines" : "markers", stackgroup: "all", name: shortName(name), x: ends, y: share(name), line: { width: 0.5, color: windowColour(k, name) }, fillcolor: windowColour(k, name),
    hovertemplate: `${hoverName(name)}: %{y:.0f} % of ${size} proposals<extra></extra>`, hoveron: "points",
  }));
  const last = labels.map((name) => [name, share(name).at(-1)]).sort((a, b) => b[1] - a[1])[0];
  chart.draw({
    traces,
    layout: { xaxis: axis("proposals"), yaxis: axis("share of the proposals (%)", { range: [0, 100] }), showlegend: true },
    summary: `In windows of ${count(size)} proposals. In the last one, ${last[0]} has the largest share: ${number(last[1], 2)} %.`,
    table: () => windowTable("Shares of the proposals in percent, the last window first", ends, labels, (name, w) => number(share(name)[w], 2), " (%)"),
  });
}

function drawKept(chart, run, { ends, labels, kept, size }) {
  const traces = labels.map((name, k) => ({
    type: "bar", name: shortName(name), x: ends, y: kept[name], marker: { color: windowColour(k, name) }, hovertemplate: `${hoverName(name)}: %{y:.1f} kept<extra></extra>`,
  }));
  const all = run.candidates.kept.filter(Boolean).length;
  chart.draw({
    traces, layout: { barmode: "stack", bargap: 0.1, xaxis: axis("proposals"), yaxis: axis("programs kept"), showlegend: true },
    summary: `Kept: ${count(all)} programs took a place on an island, ${number((100 * all) / run.size, 2)} % of the proposals. Windows of ${count(size)} proposals.`,
    table: () => windowTable("Programs kept, the last window first", ends, labels, (name, w) => number(kept[name][w], 3), ""),
  });
}

const windowTable = (caption, ends, labels, cell, unit) =>
  table(caption, [{ head: "up to proposal", cell: (w) => count(ends[w]) }, ...labels.map((name) => ({ head: `${name}${unit}`, number: true, cell: (w) => cell(name, w) }))], range(ends.length).reverse());

function proposerTable(run) {
  return table("Proposals by proposer", [
    { head: "proposer", cell: (t) => t.name }, { head: "proposals", number: true, cell: (t) => count(t.proposals) }, { head: "fitted", number: true, cell: (t) => count(t.fitted) },
    { head: "kept", number: true, cell: (t) => count(t.kept) }, { head: "kept of fitted (%)", number: true, cell: (t) => (t.fitted ? number((100 * t.kept) / t.fitted, 2) : UNKNOWN) },
    { head: "CPU time (s)", number: true, cell: (t) => number(t.cpu) }, { head: "CPU time per kept (s)", number: true, cell: (t) => (t.kept && t.cpu !== null ? number(t.cpu / t.kept) : UNKNOWN) },
    { head: "lowest mean error (%)", number: true, cell: (t) => plainPercent(t.best) },
  ], proposerTotals(run));
}
