"use strict";

// Grid: the best program of every cell of the MAP-Elites grid, on an island or on all, after any number of outcomes.

VIEWS.push({ section: "Search", key: "grid", title: "Grid", make: makeGrid, lacks: lacksScores });

const PLAY_STEPS = 60;

function makeGrid() {
  const chart = new Chart("Lowest mean error by operations and fields read", { height: 440, file: "grid", cells: true });
  const redraw = () => { drawGrid(chart, shownRun(), island.value, Number(slider.value)); write(); chart.mark(cellOfProgram()); };
  const island = choice("island", { all: "all" }, redraw);
  const slider = make("input", { type: "range", id: "grid-time", min: "0", max: "0", step: "1", on: { input: redraw } });
  const output = make("output", { for: "grid-time" });
  const write = () => { output.textContent = `${count(Number(slider.value))} of ${counted(shownRun().size, "outcome")}`; };
  const play = playButton(slider, redraw);
  const cellOfProgram = () => {
    const i = selectedAt();
    return i === undefined ? null : shownRun().candidates.cell[i];
  };
  const note = make("p", { class: "note" }, "A cell keeps the program with the lowest mean error; a consistent program replaces an inconsistent one, and the earlier one wins ties. A program that migrated counts on the island that proposed it.");
  return {
    node: viewNode([island, make("label", { for: "grid-time" }, "after", slider), output, play], chart.node, note),
    update(run) {
      const atEnd = slider.value === slider.max;
      island.offer({ all: "all", ...Object.fromEntries(range(run.islands).map((k) => [k, `island ${k}`])) });
      slider.max = String(run.size);
      if (atEnd) slider.value = slider.max;
      redraw();
    },
    select: () => chart.mark(cellOfProgram()),
  };
}

/** A button that moves a slider from its beginning to its end. */
function playButton(slider, moved) {
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; node.textContent = "Play"; };
  const step = () => {
    slider.value = String(Number(slider.value) + Math.max(1, Math.round(Number(slider.max) / PLAY_STEPS)));
    moved();
    if (slider.value === slider.max || !slider.offsetParent) stop();
  };
  const node = button("Play", () => {
    if (timer) return stop();
    if (slider.value === slider.max) slider.value = "0";
    node.textContent = "Pause";
    timer = setInterval(step, 120);
  });
  return node;
}

/** Positions by cell, "column,row", after the first outcomes, by the rule of archive.grid. */
function cellsAfter(run, island, outcomes) {
  const { cell, consistent, mean_error: error } = run.candidates;
  const homes = run.candidates.island;
  const holders = new Map();
  for (let i = 0; i < Math.min(outcomes, run.size); i++) {
    if (!cell[i] || !isNumber(error[i])) continue;
    if (island !== "all" && homes[i] !== null && homes[i] !== Number(island)) continue;
    const place = cell[i].join();
    const holder = holders.get(place);
    const wins = holder === undefined || (consistent[i] !== false && consistent[holder] === false) || ((consistent[i] !== false) === (consistent[holder] !== false) && error[i] < error[holder]);
    if (wins) holders.set(place, i);
  }
  return holders;
}

function drawGrid(chart, run, island, outcomes) {
  const { operations: columnTexts, features: rowTexts } = run.grid;
  const [columns, rows] = [columnTexts.length, rowTexts.length];
  const holders = cellsAfter(run, island, outcomes);
  const at = (column, row) => holders.get(`${column},${row}`);
  const cells = (value) => range(rows).map((row) => range(columns).map((column) => (at(column, row) === undefined ? null : value(at(column, row)))));
  const final = [...cellsAfter(run, island, run.size).values()].map((i) => run.value("mean_error", i));
  const [low, high] = [Math.min(...final), Math.max(...final)];
  const best = [...holders.values()].sort((a, b) => run.value("mean_error", a) - run.value("mean_error", b))[0];
  chart.draw({
    traces: [{
      type: "heatmap", x: range(columns), y: range(rows), z: cells((i) => Math.log10(run.value("mean_error", i))), zmin: Math.log10(low), zmax: Math.log10(Math.max(high, low * 1.01)),
      customdata: cells((i) => run.candidates.id[i]), hovertext: cells((i) => `${hover(run, i)}${run.candidates.consistent[i] === false ? "" : "<br>consistent"}`), hoverinfo: "text", hoverongaps: false,
      ...shades(), xgap: 2, ygap: 2, showscale: !NARROW.matches, colorbar: { ...colourBar("mean error (%)"), ...decades(low, high) },
    }, cellTexts(run, [...holders.values()], low, high)],
    layout: {
      xaxis: cellAxis("operations", columnTexts.map((text) => shortName(text, 12)), { range: [-0.5, columns - 0.5] }),
      yaxis: cellAxis("distinct fields read", rowTexts.map((text) => shortName(text, 12)), { range: [-0.5, rows - 0.5] }), uirevision: outcomes === 0 ? "0" : "grid",
    },
    summary: best === undefined ? "All cells are empty." : `${count(holders.size)} of ${count(rows * columns)} cells are filled; the lowest mean error, ${percent(run.value("mean_error", best))}, is in the cell of ${columnTexts[run.candidates.cell[best][0]]} operations and ${rowTexts[run.candidates.cell[best][1]]} fields. A star marks programs that are not consistent. Framed: the cell of the selected program.`,
    table: () => gridTable(run, [...holders.values()], columnTexts, rowTexts),
  });
}

/** The figures in the cells: dark on the bright half of the scale, white on the dark one. */
function cellTexts(run, positions, low, high) {
  const share = (i) => Math.log(run.value("mean_error", i) / low) / Math.log(Math.max(high, low * 1.01) / low);
  const isDark = (i) => (inDark() ? share(i) > 0.6 : share(i) < 0.4);
  const text = (i) => `${NARROW.matches ? run.value("mean_error", i).toPrecision(2) : run.value("mean_error", i).toFixed(2)}${run.candidates.consistent[i] === false ? "*" : ""}`;
  const { cell } = run.candidates;
  return {
    type: "scatter", mode: "text", hoverinfo: "skip", showlegend: false, x: positions.map((i) => cell[i][0]), y: positions.map((i) => cell[i][1]), text: positions.map(text),
    textfont: { size: NARROW.matches ? 9 : 12, color: positions.map((i) => (isDark(i) ? "#ffffff" : "#10161c")) },
  };
}

/** Ticks of a logarithmic colour bar at round numbers. */
function decades(low, high) {
  const values = range(9).flatMap((k) => [1, 2, 5].map((m) => m * 10 ** (k - 4))).filter((x) => x >= low * 0.99 && x <= high * 1.01);
  return values.length > 1 ? { tickvals: values.map(Math.log10), ticktext: values.map((x) => String(x)) } : { tickvals: [Math.log10(low)], ticktext: [low.toPrecision(3)] };
}

function gridTable(run, positions, columnTexts, rowTexts) {
  const [first, ...more] = programColumns(run, ["mean_error", "group_out"]);
  const places = [
    { head: "operations", cell: (i) => columnTexts[run.candidates.cell[i][0]] }, { head: "fields read", cell: (i) => rowTexts[run.candidates.cell[i][1]] },
    { head: "consistent", cell: (i) => (run.candidates.consistent[i] === false ? "no" : "yes") },
  ];
  return table("Programs of the cells, the lowest mean error first", [first, ...places, ...more], positions.sort((a, b) => run.value("mean_error", a) - run.value("mean_error", b)), { id: (i) => run.candidates.id[i] });
}
