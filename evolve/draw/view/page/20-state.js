"use strict";

// What the page shows: a run, a view and a program. The address's hash has all three, so that it can be bookmarked.

const state = { document: null, runs: [], run: 0, view: null, id: null };

/** The run that is shown. */
const shownRun = () => state.runs[state.run];

/** The position of the selected program in the shown run; undefined without one. */
const selectedAt = () => (state.id === null ? undefined : shownRun().at(state.id));

/** Read the hash into the state. What it names wrongly is replaced by the champion or the first. */
function readHash() {
  const words = new URLSearchParams(location.hash.slice(1));
  const run = Number(words.get("run") ?? 0);
  state.run = Number.isInteger(run) && run >= 0 && run < state.runs.length ? run : 0;
  state.view = offered().some((view) => view.key === words.get("view")) ? words.get("view") : firstView();
  const id = words.has("id") ? Number(words.get("id")) : NaN;
  const first = shownRun()?.champion ?? null;
  state.id = Number.isInteger(id) && shownRun()?.at(id) !== undefined ? id : first;
}

/** The hash of another run, view or program. */
function hashOf(change) {
  const { run, view, id } = { ...state, ...change };
  return `#${new URLSearchParams({ run, view, ...(isNumber(id) ? { id } : {}) })}`;
}

/** Go to another run, view or program, at once: a second key may follow before the browser would tell of a new hash. */
function go(change) {
  const hash = hashOf(change);
  if (hash === location.hash) return;
  history.pushState(null, "", hash); // not location.hash, which would draw once more by `hashchange`
  moved();
}

/** Select a program everywhere. */
const select = (id) => go({ id });

/** The name of a program as commands take it. */
const programName = (id) => `${shownRun().name}:${id}`;
