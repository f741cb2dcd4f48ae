"use strict";

// Ledger: what the language models were asked, what it cost, and what became of the answers.

VIEWS.push({
  section: "Search", key: "ledger", title: "Language models", make: makeLedger, shown: () => state.runs.some((run) => run.ledger),
  lacks: (run) => (run.ledger ? null : missing("No language model proposed in this run.")),
});

function makeLedger() {
  const chart = new Chart("Cost so far", { height: 320, file: "cost" });
  const body = make("div", { class: "view" });
  return {
    node: viewNode([], body, chart.node),
    update(run) {
      chart.node.hidden = !run.ledger.rows.length;
      fill(body, ledgerParts(run.ledger));
      if (!chart.node.hidden) drawCost(chart, run.ledger.rows);
    },
  };
}

const usd = (x) => (isNumber(x) ? `$${x.toFixed(x < 1 ? 4 : 2)}` : UNKNOWN);

function ledgerParts({ totals, models, rows }) {
  const tiles = make("dl", { class: "tiles" }, [
    tile("requests", count(totals.requests)), tile("tokens in", count(totals.tokens_in)), tile("tokens out", count(totals.tokens_out)),
    tile("cost", usd(totals.usd), "USD"), totals.possibly_usd ? tile("possibly more", usd(totals.possibly_usd), "USD, unanswered requests") : null,
  ]);
  const perModel = table("Models", [
    { head: "model", cell: ([name]) => name }, { head: "requests", number: true, cell: ([, m]) => count(m.requests) },
    { head: "tokens in", number: true, cell: ([, m]) => count(m.tokens_in) }, { head: "tokens out", number: true, cell: ([, m]) => count(m.tokens_out) }, { head: "cost (USD)", number: true, cell: ([, m]) => usd(m.usd) },
    { head: "outcomes", long: true, cell: ([, m]) => Object.entries(m.outcomes ?? {}).map(([name, n]) => `${name} ${count(n)}`).join(", ") || UNKNOWN },
  ], Object.entries(models));
  const requests = table("Requests, the latest first", [
    { head: "call", cell: (r) => String(r.call) }, { head: "attempt", number: true, cell: (r) => count(r.attempt) }, { head: "model", cell: (r) => r.model ?? UNKNOWN },
    { head: "tokens in", number: true, cell: (r) => count(r.tokens_in) }, { head: "tokens out", number: true, cell: (r) => count(r.tokens_out) }, { head: "cost (USD)", number: true, cell: (r) => usd(r.usd) },
    { head: "time (s)", number: true, cell: (r) => number(r.seconds) }, { head: "outcome", cell: (r) => r.outcome ?? UNKNOWN }, { head: "verdict", long: true, cell: (r) => r.verdict ?? UNKNOWN },
  ], [...rows].reverse());
  return [tiles, card("Models", perModel), card("Requests", requests)];
}

function drawCost(chart, rows) {
  const models = [...new Set(rows.map((r) => r.model ?? "unknown"))];
  const traces = models.map((model, k) => {
    let sum = 0;
    const y = rows.map((r) => (sum += (r.model ?? "unknown") === model && isNumber(r.usd) ? r.usd : 0));
    return { type: "scatter", mode: rows.length > 1 ? "lines" : "markers", stackgroup: "cost", name: shortName(model), x: range(rows.length).map((n) => n + 1), y, line: { width: 1, color: palette()[k % palette().length] }, hovertemplate: "$%{y:.4f} after %{x} requests<extra></extra>", hoveron: "points" };
  });
  chart.draw({ traces, layout: { xaxis: axis("requests"), yaxis: axis("cost so far (USD)", { rangemode: "tozero", tickprefix: "$" }), showlegend: true }, summary: `${counted(rows.length, "request")} to ${counted(models.length, "model")}.` });
}
