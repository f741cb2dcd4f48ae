"use strict";

// Details of programs: constants, predictions and shares of a step. An export has some of them; a live server makes them.

const details = new Map(); // by "run:id": {value} or {waiting: true}

/** The DETAIL of a program, null while it is awaited or if there is none; `problem` says why. */
function detailOf(run, id) {
  if (id === null || id === undefined) return { detail: null, problem: "No program is selected." };
  const embedded = run.details[id];
  if (embedded) return usable(embedded);
  if (!state.document.live) {
    return { detail: null, problem: "This page has details only of the champion and of programs on the front.", command: `evolve view ${run.name}` };
  }
  const key = `${state.run}:${id}`;
  if (!details.has(key)) request(key, state.run, id);
  const { value } = details.get(key);
  if (!value) return { detail: null, problem: "Details are being computed …" };
  return usable(value);
}

/** A DETAIL with its problem; one that could not be made at all has nothing but its problem. */
const usable = (value) => ({ detail: value.constants ? value : null, problem: value.problem ?? null });

async function request(key, run, id) {
  details.set(key, { waiting: true });
  try {
    details.set(key, { value: await fetched(`program?run=${run}&id=${id}`) });
  } catch (error) {
    details.set(key, { value: { problem: error.problem ?? "The server did not answer: is `evolve view` still running?" } });
    setTimeout(() => details.delete(key), 5000); // so that selecting the program again asks again
  }
  refresh({ programs: true });
}

/** The figures of a program on every experiment: [{experiment, fitted, figures, stages}], from its DETAIL or its errors. */
function predictionsOf(run, i) {
  const { detail } = detailOf(run, run.candidates.id[i]);
  if (detail?.predictions.length) return detail.predictions;
  return [...run.errorsOf(i)].map(([name, errors]) => {
    const observed = run.experiment(name)?.observed_ms ?? {};
    const figures = Object.fromEntries(Object.keys(LATENCIES).map((latency) => [latency, figureOf(observed[latency], errors[latency])]));
    return { experiment: name, fitted: true, figures, stages: [] };
  });
}

/** Rows by whether the program was fitted on their experiment, {name, rows, marker} each; uses without rows are left out. */
function byUse(rows) {
  const uses = [[true, "fitted", "circle", palette()[0]], [false, "predicted only", "diamond-open", palette()[5]], [null, "unknown", "square-open", palette()[3]]];
  return uses.map(([fitted, name, symbol, c]) => {
    const open = symbol.endsWith("open");
    const marker = { symbol, size: 10, color: c, line: { width: open ? 2 : 1, color: open ? c : colour("card") } };
    return { name, rows: rows.filter((r) => (r.fitted ?? null) === fitted), marker };
  }).filter((use) => use.rows.length);
}

/** How large a program is, in words. */
const sizeText = (run, i) => ["operation", "constant", "field"].map((noun, k) => counted(run.value(["operations", "constants", "features"][k], i) ?? 0, noun)).join(", ");

/** A figure without intervals, from what was observed (ms) and the error (%). */
function figureOf(observed, error) {
  const known = isNumber(observed) && isNumber(error);
  return { predicted_ms: known ? observed * (1 + error / 100) : null, observed_ms: observed ?? null, error_pct: error ?? null };
}

/** What a view of one program shows where none is selected, it is missing here, or it was never scored; null if it can be shown. */
function noProgram(run) {
  const i = selectedAt();
  if (i === undefined) return run.size ? missing("Select a program: click a point in a chart, or type its number into “Selected program”.") : nothingScored(run);
  return null;
}
