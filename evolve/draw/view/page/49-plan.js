"use strict";

// Plan: the answer, the ranked deployments, latency, speed and cost in charts, and the commands that deploy and test the first.

VIEWS.push({ section: "Plan", key: "plan", title: "Plan", make: makePlan, shown: () => Boolean(state.document.plan) });

const ABOVE_LIMIT = 2.5; // the height of a chart of latencies, in limits: beyond the knee they grow without end
const DASHED = ["solid", "dash", "dot", "dashdot"];
const MARKS = ["circle", "square", "diamond", "triangle-up"];

function makePlan() {
  const { plan } = state.document;
  const p = plan.pictures;
  const limited = p.latency.length ? Object.entries(p.limits) : [];
  const latencies = limited.map(([name, most]) => [name, most, new Chart(`${limitWords(name)} against load`, { height: 340, file: `plan-${name}` })]);
  const [speed, cost] = ["Throughput and speed of one replica", "Cost within the limits"].map((title, k) => new Chart(title, { height: 380, file: ["plan-speed", "plan-cost"][k] }));
  const cautions = [...new Set([...plan.cautions, ...plan.warnings])];
  const commands = [["Deploy a replica of the first", plan.serve], ["Choose measurements of it, at most an hour of a GPU", plan.probe]].filter(([, command]) => command);
  return {
    node: viewNode(
      [], make("p", { class: "answer" }, p.title), make("p", {}, p.question), make("div", { class: "whole" }, card("Deployments", deploymentsTable(plan))),
      cautions.length ? card("What the first deployment stands on", make("ul", { class: "warnings" }, cautions.map((text) => make("li", {}, text)))) : null,
      make("div", { class: "pair" }, latencies.map(([, , chart]) => chart.node), speed.node, cost.node),
      commands.length ? card("Deploy and test", commands.map(([title, command]) => commandBox(title, command))) : null,
    ),
    update() {
      latencies.forEach(([name, most, chart]) => drawPlanLatency(chart, p, name, most));
      drawPlanSpeed(speed, p);
      drawPlanCost(cost, p);
    },
  };
}

/** A limit's name for readers: `TTFT p99` of ttft_p99. */
const limitWords = (name) => name.replace(/^[^_]+/, (latency) => LATENCIES[latency]).replace("_", " ");

function deploymentsTable({ rows, pictures }) {
  const known = (key) => rows.some((row) => isNumber(row[key]));
  const unlimited = ["ttft_mean", "itl_mean"].filter((name) => !Object.keys(pictures.limits).some((limit) => limit.startsWith(name.slice(0, -5))));
  const figures = [
    ["replicas", "replicas", count], ["gpus", "GPUs", count], ["usd_per_hour", "$/h", dollars], ["usd_per_million_output_tokens", "$/M tokens", dollars],
    ...Object.entries(pictures.limits).map(([name, most]) => [name, `${limitWords(name)} (ms), at most ${number(most)}`]),
    ...unlimited.map((name) => [name, `${limitWords(name)} (ms)`]),
    ["headroom_pct", "room (%)", (x) => signed(x, 0)], ["gpus_80", "GPUs to be 80 % sure", count], ["gpus_95", "GPUs to be 95 % sure", count],
  ];
  const latencies = [...Object.keys(pictures.limits), ...unlimited];
  const columns = figures.filter(([key]) => latencies.includes(key) || known(key)).map(([key, head, text]) => (
    { head, number: true, cell: (row) => (text ? text(row[key]) : latencyText(row, key)) }
  ));
  const ranked = `${known("usd_per_hour") ? "the cheapest" : "the fewest GPUs"}${known("gpus_80") ? " to be 80 % sure" : ""} first`;
  const starred = rows.some((row) => latencies.some((name) => intervalOf(row, name)?.calibrated === false));
  return [
    table(`Ranked, ${ranked}; latencies with 80 % intervals`, [{ head: "deployment", cell: (row) => row.deployment }, ...columns], rows),
    make("p", { class: "note" }, `Each has the fewest replicas that keep the limits. Room: the smallest distance to a limit. Sure: the upper ends of the intervals keep the limits too.${starred ? " *: not calibrated, because too few held-out runs measured the figure." : ""}`),
  ];
}

/** Dollars with cents. */
const dollars = (x) => (isNumber(x) ? x.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : UNKNOWN);

/** The interval of the figure that a limit is on, undefined without one. */
const intervalOf = (row, name) => row.intervals_ms[name.replace(/_mean$/, "")];

/** The figure that a limit is on, with its interval: `640 (510–803)`. */
function latencyText(row, name) {
  const [latency, quantity] = name.split("_");
  const interval = intervalOf(row, name);
  return `${number(row[`${latency}_ms`]?.[quantity])}${interval ? ` (${interval["80"].map((x) => number(x)).join("–")})${interval.calibrated ? "" : "*"}` : ""}`;
}

/** A line at the asked load, up to a height. */
const askedTrace = (p, height) => ({
  type: "scatter", mode: "lines", name: "asked load", x: [p.asked, p.asked], y: [0, height], line: { color: colour("soft"), dash: "dot", width: 2 }, hoverinfo: "text", text: said(`asked: ${loadText(p, p.asked)}`),
});

const loadText = (p, load) => `${number(load)} ${p.unit}`;

function drawPlanLatency(chart, p, name, most) {
  const words = limitWords(name);
  const banded = p.latency.filter((point) => isNumber(point.low_ms[name]));
  const loads = banded.map((point) => point.load);
  const interval = (point) => (isNumber(point.low_ms[name]) ? `${number(point.low_ms[name])} to ${number(point.high_ms[name])} ms` : UNKNOWN);
  const edge = (ends, more) => ({ type: "scatter", mode: "lines", x: loads, y: banded.map((point) => point[ends][name]), line: { width: 0 }, hoverinfo: "skip", ...more });
  const asked = p.latency.find((point) => point.load >= p.asked);
  const failing = p.latency.find((point) => !isNumber(point.ms[name]) || point.ms[name] > most);
  chart.draw({
    traces: [
      edge("low_ms", { showlegend: false }), edge("high_ms", { fill: "tonexty", fillcolor: `${palette()[0]}38`, name: "80 % interval", showlegend: banded.length > 0 }),
      {
        type: "scatter", mode: "lines+markers", name: "predicted", x: p.latency.map((point) => point.load), y: p.latency.map((point) => point.ms[name]), line: { color: palette()[0], width: 2.5 }, marker: { size: 7 },
        hoverinfo: "text", text: p.latency.map((point) => said(`${loadText(p, point.load)}: ${words} ${number(point.ms[name])} ms`, `80 % interval: ${interval(point)}`, `limit: ${number(most)} ms`)),
      },
      { type: "scatter", mode: "lines", name: "limit", x: [0, p.latency.at(-1).load], y: [most, most], line: { color: palette()[5], dash: "dash", width: 2.5 }, hoverinfo: "text", text: said(`limit: ${number(most)} ms`) },
      askedTrace(p, ABOVE_LIMIT * most),
    ],
    layout: { xaxis: axis(`${p.unit} of the service`, { rangemode: "tozero" }), yaxis: axis(`${words} (ms)`, { range: [0, ABOVE_LIMIT * most] }), showlegend: true, margin: roomyMargin() },
    summary: `${p.replicas} × ${p.deployment}. ${asked ? `At ${loadText(p, asked.load)}: ${number(asked.ms[name])} ms, 80 % interval ${interval(asked)}; the limit is ${number(most)} ms. ` : ""}${failing ? `At ${loadText(p, failing.load)} it exceeds the limit.` : "It keeps the limit at all loads here."}`,
    table: () => table(`${words} in ms`, [
      { head: p.unit, cell: (point) => number(point.load) }, { head: "predicted", number: true, cell: (point) => number(point.ms[name]) }, { head: "80 % interval", number: true, cell: interval },
    ], p.latency),
  });
}

function drawPlanSpeed(chart, p) {
  const curves = p.speed.filter((curve) => curve.predicted.length);
  if (!curves.length) return chart.draw({ empty: missing("The load of this plan is a trace, whose lengths are not drawn.") });
  const rows = curves.flatMap((curve) => ["predicted", "measured"].flatMap((kind) => curve[kind].map((point) => ({ ...point, kind, deployment: curve.deployment }))));
  const trace = (curve, k, kind, more) => ({
    type: "scatter", x: curve[kind].map((point) => point.client_tokens_per_s), y: curve[kind].map((point) => point.gpu_tokens_per_s), hoverinfo: "text",
    text: curve[kind].map((point) => said(`${curve.deployment}, ${kind}`, counted(point.level, "client"), `${number(point.client_tokens_per_s)} tokens/s each`, `${number(point.gpu_tokens_per_s)} tokens/s per GPU`)), ...more,
  });
  const cross = (c) => ({ symbol: "x-thin", size: 9, color: c, line: { width: 2.5, color: c } });
  const measured = rows.some((row) => row.kind === "measured");
  return chart.draw({
    traces: [
      ...curves.map((curve, k) => trace(curve, k, "predicted", { mode: "lines+markers", name: plain(curve.deployment), line: { color: palette()[k], width: 2.5 }, marker: { size: 7, symbol: MARKS[k] } })),
      ...curves.map((curve, k) => trace(curve, k, "measured", { mode: "markers", showlegend: false, marker: cross(palette()[k]) })),
      ...(measured ? [{ type: "scatter", mode: "markers", name: "measured", x: [null], y: [null], marker: cross(colour("soft")) }] : []),
    ],
    layout: { xaxis: axis("tokens/s of each client", { rangemode: "tozero" }), yaxis: axis("tokens/s per GPU", { rangemode: "tozero" }), showlegend: true, margin: roomyMargin() },
    summary: `Along 1, 2, 4 and more clients of one replica, each of which waits for its answers.${measured ? " Crosses: measured runs of the same deployment with about as long prompts and answers." : ""}`,
    table: () => table("Tokens per second", [
      { head: "deployment", cell: (row) => row.deployment }, { head: "", cell: (row) => row.kind }, { head: "clients", number: true, cell: (row) => count(row.level) },
      { head: "each client", number: true, cell: (row) => number(row.client_tokens_per_s) }, { head: "per GPU", number: true, cell: (row) => number(row.gpu_tokens_per_s) },
    ], rows),
  });
}

function drawPlanCost(chart, p) {
  const first = p.cost[0];
  chart.draw({
    traces: [
      ...p.cost.map((curve, k) => ({
        type: "scatter", mode: "lines", name: plain(curve.deployment), x: p.loads, y: curve.cost, line: { shape: "vh", color: palette()[k], width: 2.5, dash: DASHED[k] },
        hoverinfo: "text", text: p.loads.map((load, i) => said(curve.deployment, `${loadText(p, load)}: ${number(curve.cost[i])} ${p.costs}`)),
      })),
      askedTrace(p, Math.max(...p.cost.flatMap((curve) => curve.cost))),
    ],
    layout: { xaxis: axis(`${p.unit} of the service`, { rangemode: "tozero" }), yaxis: axis(p.costs, { rangemode: "tozero" }), showlegend: true, margin: roomyMargin() },
    summary: `${first.deployment}: ${number(first.cost[0])} ${p.costs} at ${loadText(p, p.loads[0])}, ${number(first.cost.at(-1))} at ${number(p.loads.at(-1))}.`,
    table: () => table(`Cost in ${p.costs}`, [{ head: p.unit, cell: (i) => number(p.loads[i]) }, ...p.cost.map((curve) => ({ head: curve.deployment, number: true, cell: (i) => number(curve.cost[i]) }))], range(p.loads.length)),
  });
}

/** A command in a box, with a button that copies it; where the browser forbids that, the button selects it. */
function commandBox(title, command) {
  const text = programText(command, title);
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(command);
      copy.textContent = "Copied";
      announce("Copied");
    } catch {
      getSelection().selectAllChildren(text);
      announce("Selected");
    }
  }, { "aria-label": `Copy: ${title}` });
  return make("div", { class: "stack" }, make("div", { class: "chart-head" }, make("h4", {}, title), make("div", { class: "chart-tools" }, copy)), text);
}
