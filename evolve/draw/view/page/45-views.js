"use strict";

// The views, in the order of their tabs. A view is made when it is first opened and drawn only while it is visible.

/**
 * Each view: key, title, make(). `make` returns {node, update(run), select(run)}: `update` draws it for a run, which may
 * have grown; `select` shows another program, by default by marking its rows.
 */
const VIEWS = [];

/** A view that is made and drawn when it is needed. */
class LazyView {
  constructor({ key, title, make: build }) {
    Object.assign(this, { key, title, build, made: null, stale: true, shownId: undefined });
    this.node = make("div", { class: "view", id: `view-${key}`, role: "tabpanel", "aria-labelledby": `tab-${key}`, tabindex: "-1", hidden: true });
  }

  /** Draw what has changed since the view was last visible. */
  show() {
    this.node.hidden = false;
    if (!this.made) {
      this.made = this.build();
      fill(this.node, make("h2", {}, this.title), this.made.node);
    }
    const run = shownRun();
    if (this.stale || this.shownId !== state.id) {
      keepingPlace(this.node, () => {
        if (this.stale) this.made.update(run);
        this.made.select?.(run);
      });
    }
    markRows(this.node);
    this.stale = false;
    this.shownId = state.id;
  }
}

/** What a view shows as long as nothing was scored. */
const nothingScored = (run) => missing("No candidate has been scored yet. Candidates appear here as soon as the search scores them.", `evolve resume ${run.name}`);
