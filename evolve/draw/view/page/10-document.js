"use strict";

// The document: how it is read, and a run of it with quick answers to what the views ask.

/** The JSON value in base64 of gzip, which is how an exported page carries its document. */
async function unpacked(base64) {
  const raw = atob(base64.trim());
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** The JSON value at a relative address of the server. Throws if the server is gone or refuses; then `problem` says why. */
async function fetched(address) {
  const response = await fetch(address, { cache: "no-store" });
  const value = await response.json();
  if (!response.ok) throw Object.assign(new Error(value.problem), { problem: value.problem });
  return value;
}

/** The document that was exported into this page, or the server's. */
async function readDocument() {
  const data = document.getElementById("data");
  if (!data) return fetched("data");
  const value = await unpacked(data.textContent);
  data.remove(); // some megabytes of text that nobody needs again
  return value;
}

const LATENCIES = { e2e: "E2E", ttft: "TTFT", itl: "ITL" };
const MEASURES = {
  mean_error: "mean error (%)", group_out: "leave-group-out error (%)", e2e: "E2E error (%)", ttft: "TTFT error (%)", itl: "ITL error (%)",
  worst3: "worst-3 E2E (%)", complexity: "complexity (operations + constants)", operations: "operations", constants: "constants", features: "fields read",
};

/** Whether a value is a number that can be drawn. */
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

/** A run of the document. A program is named by its id; its place in the columns is its position. */
class Run {
  constructor(raw) {
    this.take(raw, raw.candidates);
  }

  /** Take over everything but the columns from `raw`, and these columns. */
  take(raw, columns) {
    Object.assign(this, raw);
    this.candidates = columns;
    this.positions = new Map(columns.id.map((id, i) => [id, i]));
    this.onFront = new Set(raw.front);
    this.cache = new Map();
  }

  /** Append the outcomes that a live server sent after those that are here. */
  append(raw) {
    const columns = this.candidates;
    renumber(raw.candidates.operator, raw.operators, this.operators);
    renumber(raw.candidates.stage, raw.stages, this.stages);
    const { operators, stages, details } = this;
    for (const [name, values] of Object.entries(raw.candidates)) {
      columns[name] = columns[name] ? columns[name].concat(values) : values;
    }
    this.take({ ...raw, operators, stages, details: { ...details, ...raw.details } }, columns);
  }

  get size() {
    return this.candidates.id.length;
  }

  /** The position of a program, undefined if it is not in the document. */
  at(id) {
    return this.positions.get(id);
  }

  /** A column's value, or the sum that is called complexity. */
  value(name, i) {
    const c = this.candidates;
    if (name !== "complexity") return c[name][i];
    return isNumber(c.operations[i]) ? c.operations[i] + (c.constants[i] ?? 0) : null;
  }

  operator(i) {
    return this.operators[this.candidates.operator[i]] ?? "unknown";
  }

  stage(i) {
    return this.stages[this.candidates.stage[i]] ?? "unknown";
  }

  isScored(i) {
    return this.candidates.stage[i] === 0;
  }

  /** The number of a proposal in the order of the journal; its id where candidates were left out. */
  order(i) {
    return this.thinned ? this.candidates.id[i] : i + 1;
  }

  /** Positions of all scored candidates. */
  get scored() {
    return this.once("scored", () => range(this.size).filter((i) => this.isScored(i) && isNumber(this.candidates.mean_error[i])));
  }

  /** Ids of the programs that were made from this one. */
  childrenOf(id) {
    const children = this.once("children", () => {
      const map = new Map();
      this.candidates.parents.forEach((parents, i) => {
        for (const parent of new Set(parents ?? [])) {
          if (!map.has(parent)) map.set(parent, []);
          map.get(parent).push(this.candidates.id[i]);
        }
      });
      return map;
    });
    return children.get(id) ?? [];
  }

  /** Seconds of CPU up to and including each outcome; null where none is known. */
  get cpuSeconds() {
    return this.once("cpu", () => {
      if (!this.candidates.cpu_s.some(isNumber)) return null;
      let sum = 0;
      return this.candidates.cpu_s.map((s) => (sum += s ?? 0));
    });
  }

  /** Signed errors {e2e, ttft, itl} of a program by fitted experiment. */
  errorsOf(i) {
    const flat = this.candidates.errors[i];
    const rows = new Map();
    if (!flat) return rows;
    this.fitted.forEach((name, k) => rows.set(name, { e2e: flat[3 * k], ttft: flat[3 * k + 1], itl: flat[3 * k + 2] }));
    return rows;
  }

  experiment(name) {
    return this.once("experiments", () => new Map(this.experiments.map((e) => [e.id, e]))).get(name);
  }

  /** What `make` returns, computed once until outcomes are appended. */
  once(key, make) {
    if (!this.cache.has(key)) this.cache.set(key, make());
    return this.cache.get(key);
  }
}

/** The whole numbers from 0 up to `n`, without it. */
const range = (n) => Array.from({ length: n }, (_, i) => i);

/** Change a column of indices into `theirs` into one into `ours`, which gets the names that it lacks. */
function renumber(column, theirs, ours) {
  column.forEach((index, i) => {
    const name = theirs[index];
    const known = ours.indexOf(name);
    column[i] = known < 0 ? ours.push(name) - 1 : known;
  });
}

/** The lowest value so far after each position, over consistent programs; null before the first. */
function lowestSoFar(run, name) {
  return run.once(`lowest ${name}`, () => {
    const values = run.candidates[name];
    let lowest = null;
    return values.map((x, i) => {
      if (isNumber(x) && run.candidates.consistent[i] !== false && (lowest === null || x < lowest)) lowest = x;
      return lowest;
    });
  });
}

/** Positions where a series that only falls has fallen, and the last one: enough to draw its steps. */
function turns(series) {
  return range(series.length).filter((i) => series[i] !== null && (i === 0 || series[i] !== series[i - 1] || i === series.length - 1));
}
