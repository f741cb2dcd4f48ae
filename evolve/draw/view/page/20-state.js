"use strict";

// What the page shows: a run, a view and a program. The address's hash has all three, so that it can be bookmarked.

const state = { document: null, runs: [], run: 0, view: "overview", id: null };

/** The run that is shown. */
const shownRun = () => state.runs[state.run];

/** The position of the selected program in the shown run; undefined without one. */
const selectedAt = () => (state.id === null ? undefined : shownRun().at(state.id));

/** Read the hash into the state. What it names wrongly is replaced by the champion or the first. */
function readHash(views) {
  const words = new URLSearchParams(location.hash.slice(1));
  const run = Number(words.get("run") ?? 0);
  state.run = Number.isInteger(run) && run >= 0 && run < state.runs.length ? run : 0;
  state.view = views.includes(words.get("view")) ? words.get("view") : views[0];
  const id = words.has("id") ? Number(words.get("id")) : NaN;
  const first = shownRun()?.champion ?? null;
  state.id = Number.isInteger(id) && shownRun()?.at(id) !== undefined ? id : first;
}

/** Go to another run, view or program, at once: a second key may follow before the browser would tell of a new hash. */
function go(change) {
  const next = { run: state.run, view: state.view, id: state.id, ...change };
  const words = new URLSearchParams({ run: next.run, view: next.view });
  if (next.id !== null && next.id !== undefined) words.set("id", next.id);
  if (`#${words}` === location.hash) return;
  history.pushState(null, "", `#${words}`); // not location.hash, which would draw once more by `hashchange`
  moved();
}

/** Select a program everywhere. */
const select = (id) => go({ id });

/** The name of a program as commands take it. */
const programName = (id) => `${shownRun().name}:${id}`;
