"use strict";

// Live: ask the server every two seconds whether runs have grown, and fetch what is new.

const POLL_MS = 2000;
const WHOLE_MS = 20000; // between fetches of a run whose outcomes cannot simply be appended
const ANNOUNCE_MS = 30000; // between announcements to screen readers

const live = { connected: true, announced: 0, whole: 0 };

/** Poll until the page is closed. A poll begins after the one before has ended. */
async function follow() {
  try {
    const { runs } = await fetched("version");
    let grown = false;
    for (let k = 0; k < Math.min(runs.length, state.runs.length); k++) grown = (await catchUp(k, runs[k])) || grown;
    const back = !live.connected;
    live.connected = true;
    if (grown) refresh({ data: true });
    if (grown || back) showState();
  } catch {
    if (live.connected) { live.connected = false; showState(); }
  }
  setTimeout(follow, POLL_MS);
}

/** Fetch what a run has more than the page. True if there was anything. */
async function catchUp(k, { outcomes, state: runState }) {
  const run = state.runs[k];
  const have = run.thinned ? run.totals.proposals : run.size;
  if (outcomes === have && runState === run.state) return false;
  if (run.thinned || outcomes < have) return replace(k, run);
  const { run: raw } = await fetched(`data?run=${k}&after=${run.size}`);
  if (raw.thinned) return replace(k, run); // it has just become too large to be sent whole
  run.append(raw);
  return true;
}

/** Fetch a whole run again. */
async function replace(k, run) {
  if (Date.now() - live.whole < WHOLE_MS) return false;
  live.whole = Date.now();
  const { run: raw } = await fetched(`data?run=${k}&after=0`);
  run.take(raw, raw.candidates);
  return true;
}

/** What the header says of the run. */
function stateText(run) {
  if (state.document.live && !live.connected) return ["disconnected", "disconnected: the server is gone, trying again"];
  if (run.state === "running") return ["running", `running: ${count(run.totals.fitted)} of ${count(run.budget)} candidates fitted`];
  if (run.state === "finished") return ["finished", `finished: ${counted(run.totals.fitted, "candidate")} fitted`];
  return ["stopped", `stopped after ${counted(run.totals.fitted, "candidate")}; evolve resume ${run.name} continues`];
}

/** Show the state. The text is a live region, so a running search's numbers are set rarely enough to be listened to. */
function showState() {
  const element = document.getElementById("state");
  const [kind, text] = stateText(shownRun());
  const changed = element.dataset.state !== kind;
  element.dataset.state = kind;
  if (changed || Date.now() - live.announced > ANNOUNCE_MS) {
    live.announced = Date.now();
    element.setAttribute("aria-live", "polite");
  } else element.setAttribute("aria-live", "off");
  if (element.textContent !== text) element.textContent = text;
}
