"use strict";

// Tables. Each scrolls in a box of its own, which can be reached by keyboard.

const MOST_ROWS = 200;

/**
 * A table in its box. Columns are {head, cell(row), number, long}: `cell` returns a text or a node. The first column
 * names the row. `id(row)`: the program that a row is about, which marks the selected one.
 */
function table(caption, columns, rows, { id = null } = {}) {
  const shown = rows.slice(0, MOST_ROWS);
  const title = rows.length > shown.length ? `${caption}: the first ${count(shown.length)} of ${count(rows.length)} rows` : caption;
  const head = make("tr", {}, columns.map((c) => make("th", { scope: "col", class: c.number ? "number" : null }, c.head)));
  const body = shown.map((row) => {
    const cells = columns.map((c, k) => {
      const attributes = { class: c.number ? "number" : c.long ? "long" : null };
      return k ? make("td", attributes, c.cell(row)) : make("th", { scope: "row", ...attributes }, c.cell(row));
    });
    return make("tr", { "data-id": id ? id(row) : null, "aria-current": id && id(row) === state.id ? "true" : null }, cells);
  });
  const node = make("table", {}, make("caption", {}, title), make("thead", {}, head), make("tbody", {}, body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, node);
}

/** Mark the rows of the selected program in all tables of an element. */
function markRows(element) {
  for (const row of element.querySelectorAll("tr[data-id]")) {
    if (row.dataset.id === String(state.id)) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

/** Columns of a table of programs, whose rows are positions. */
function programColumns(run, measures = ["mean_error", "group_out", "complexity"]) {
  return [
    { head: "program", cell: (i) => idButton(run.candidates.id[i]) },
    ...measures.map((name) => ({
      head: MEASURES[name], number: true, cell: (i) => (MEASURES[name].includes("%") ? plainPercent : count)(run.value(name, i)),
    })),
    { head: "proposed by", cell: (i) => run.operator(i) },
  ];
}

/** A table of the programs at these positions. */
const programTable = (caption, run, positions, measures) =>
  table(caption, programColumns(run, measures), positions, { id: (i) => run.candidates.id[i] });
