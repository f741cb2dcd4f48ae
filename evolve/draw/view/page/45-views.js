"use strict";

// The views. A view is made when it is first opened and drawn only while it is visible.

/** The sections of the page in the order of their links. One without views is not shown. */
const SECTIONS = ["Plan", "Compare", "Search"];

/**
 * Each view: section, key, title, make(), and optionally shown(), whether this page has it (by default: if it has runs),
 * and lacks(run), what it shows instead of itself, or null. `make` returns {node, update(run), select(run)}: `update`
 * draws it for a run, which may have grown; `select` shows another program, by default by marking its rows.
 */
const VIEWS = [];

/** The views that this page has. */
const offered = () => VIEWS.filter(({ shown = () => state.runs.length > 0 }) => shown());

/** The views of a section. */
const viewsOf = (section) => offered().filter((view) => view.section === section);

/** The view that a page opens with: the plan if it has one, the comparison of several runs, or how the search stands. */
const firstView = () => ["Plan", state.runs.length > 1 ? "Compare" : "Search"].flatMap(viewsOf)[0]?.key;

/** A view that is made and drawn when it is needed. */
class LazyView {
  constructor(view) {
    Object.assign(this, { build: view.make, lacks: () => null, made: null, stale: true, shownId: undefined }, view);
    this.nothing = make("div");
    this.node = make("section", { class: "view", id: `view-${view.key}`, "aria-labelledby": `title-${view.key}`, hidden: true });
  }

  /** Draw what has changed since the view was last visible. */
  show() {
    this.node.hidden = false;
    if (!this.made) {
      this.made = this.build();
      fill(this.node, make("h2", { id: `title-${this.key}` }, this.title), this.nothing, this.made.node);
    }
    const run = shownRun();
    const nothing = this.lacks(run);
    fill(this.nothing, nothing);
    this.nothing.hidden = !nothing;
    this.made.node.hidden = Boolean(nothing);
    if (nothing) return;
    if (this.stale || this.shownId !== state.id) {
      keepingPlace(this.node, () => {
        if (this.stale) this.made.update?.(run);
        this.made.select?.(run);
      });
    }
    markRows(this.node);
    this.stale = false;
    this.shownId = state.id;
  }
}

/** The node of a view: the controls, and what is below them. */
const viewNode = (controls, ...parts) => make("div", { class: "view" }, controls.length ? controlRow(controls) : null, parts);

/** Choices and other controls in a row. */
const controlRow = (controls) => make("div", { class: "controls" }, controls.map((control) => control.node ?? control));

/** What a view shows as long as nothing was scored. */
const nothingScored = (run) => missing("No candidate has been scored yet. Candidates appear here as soon as the search scores them.", `evolve resume ${run.name}`);

/** What a view of scored candidates lacks. */
const lacksScores = (run) => (run.scored.length ? null : nothingScored(run));
