"use strict";

// The panel of the selected program, which is beside every view.

/** Badges that say what is special about a program. */
function badges(run, i) {
  const { id, kept, consistent } = run.candidates;
  const good = { champion: id[i] === run.champion, front: run.onFront.has(id[i]), kept: kept[i] };
  const bad = { inconsistent: consistent[i] === false, rejected: !run.isScored(i) };
  return [[good, "badge"], [bad, "badge bad"]].map(([words, style]) => Object.keys(words).filter((word) => words[word]).map((word) => make("span", { class: style }, word)));
}

/** Draw the panel, and the bar that stands for it on narrow screens. */
function drawPanel(panel, bar, run) {
  const i = selectedAt();
  const title = i === undefined ? make("h2", {}, "No program selected") : make("h2", {}, `Program ${state.id}`);
  fill(panel, title, gotoForm(run), i === undefined ? make("p", { class: "note" }, "Click a point in a chart, press Enter on a number in a table, or type one here.") : panelOf(run, i));
  fill(bar, i === undefined ? null : [
    make("span", {}, `Program ${state.id} · mean error ${percent(run.value("mean_error", i))}`), button("Its program", () => { panel.scrollIntoView(); panel.focus(); }),
  ]);
}

function panelOf(run, i) {
  const c = run.candidates;
  const parents = parentsHere(run, state.id);
  const measures = ["mean_error", "group_out", "worst3"].filter((name) => isNumber(run.value(name, i)));
  const latencies = Object.entries(LATENCIES).filter(([name]) => isNumber(run.value(name, i)));
  return [
    make("p", {}, badges(run, i)),
    facts([
      ...measures.map((name) => [MEASURES[name].replace(" (%)", ""), percent(run.value(name, i))]), ...latencies.map(([name, text]) => [`${text} error`, percent(run.value(name, i))]),
      isNumber(c.operations[i]) ? ["size", sizeText(run, i)] : null, ["proposed by", run.operator(i)], parents.length ? ["parents", parents.map((p) => [idButton(p), " "])] : null,
      ["island", c.island[i] === null ? "all" : String(c.island[i])], isNumber(c.generation[i]) ? ["generation", count(c.generation[i])] : null,
      isNumber(c.cpu_s[i]) ? ["CPU time", `${number(c.cpu_s[i])} s`] : null, run.isScored(i) ? null : ["rejected at", run.stage(i)], c.why[i] ? ["why", c.why[i]] : null, c.idea[i] ? ["idea", c.idea[i]] : null,
    ]),
    make("div", { class: "buttons" }, ["program", "lineage", "fit"].map((view) => button({ program: "Details", lineage: "Lineage", fit: "Fit" }[view], () => go({ view })))),
    c.text[i] ? programText(c.text[i], `Text of the selected program ${state.id}`) : make("p", { class: "note" }, "Its text is not in this page: ", make("code", {}, `evolve show ${programName(state.id)}`)),
  ];
}

function gotoForm(run) {
  const input = make("input", { id: "goto", inputmode: "numeric", autocomplete: "off", "aria-describedby": "goto-problem" });
  const problem = make("span", { id: "goto-problem", class: "note", role: "alert" });
  const submitted = (event) => {
    event.preventDefault();
    const id = Number(input.value);
    if (input.value.trim() && run.at(id) !== undefined) select(id);
    else problem.textContent = "no such program here";
  };
  const champion = run.champion === null || run.champion === state.id ? null : button("Champion", () => select(run.champion));
  return make("form", { class: "goto", on: { submit: submitted } }, make("label", { for: "goto" }, "Program"), input, make("button", { class: "button" }, "Select"), champion, problem);
}
