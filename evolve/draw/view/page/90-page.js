"use strict";

// The page: its header, its tabs, and what is drawn again when something changes.

const THEMES = { system: "system", light: "light", dark: "dark" };
const DARK = matchMedia("(prefers-color-scheme: dark)");
const page = { views: new Map(), theme: "system" };

/** The views of this document: the ledger only where a language model proposed. */
const viewsHere = () => VIEWS.filter((v) => v.key !== "ledger" || state.runs.some((run) => run.ledger));

/** Apply the theme; charts take their colours from it, so they are drawn again. */
function setTheme(theme) {
  page.theme = theme;
  document.documentElement.dataset.theme = theme === "system" ? (DARK.matches ? "dark" : "light") : theme;
  try { localStorage.setItem("evolve-theme", theme); } catch { /* a file may have no storage */ }
  if (state.document) refresh({ data: true });
}

function storedTheme() {
  try { return localStorage.getItem("evolve-theme") ?? "system"; } catch { return "system"; }
}

/** Draw again what is visible; hidden views are drawn when they are opened. `data`: all views; `programs`: those of one program. */
function refresh({ data = false, programs = false }) {
  if (data && state.id === null && state.runs.length) {
    readHash([...page.views.keys()]); // there may be a champion now
    drawProgram();
  }
  for (const view of page.views.values()) {
    if (data) view.stale = true;
    if (programs) view.shownId = undefined;
  }
  showAll();
}

/** Show what the state says. */
function showAll() {
  const run = shownRun();
  for (const [key, view] of page.views) {
    const tab = document.getElementById(`tab-${key}`);
    const shown = key === state.view;
    tab.setAttribute("aria-selected", String(shown));
    tab.tabIndex = shown ? 0 : -1;
    if (shown) revealTab(tab);
    else view.node.hidden = true;
  }
  fill(document.getElementById("notes"), (run.notes ?? []).map((note) => make("p", {}, note)));
  page.views.get(state.view).show();
  document.title = `${page.views.get(state.view).title} · ${run.name} · evolve view`;
  drawWhich();
}

/** Scroll the strip of tabs, but not the page, until a tab can be seen. */
function revealTab(tab) {
  const strip = tab.parentElement;
  if (tab.offsetLeft < strip.scrollLeft) strip.scrollLeft = tab.offsetLeft - 20;
  const right = tab.offsetLeft + tab.offsetWidth;
  if (right > strip.scrollLeft + strip.clientWidth) strip.scrollLeft = right - strip.clientWidth + 20;
}

function drawProgram() {
  const panel = document.getElementById("program");
  keepingPlace(panel, () => drawPanel(panel, document.getElementById("bar"), shownRun()));
}

/** Show what the hash says: another run, view or program. Back, forward and a typed address come here too. */
function moved() {
  const before = { ...state };
  readHash([...page.views.keys()]);
  if (before.run !== state.run) for (const view of page.views.values()) view.stale = true;
  if (before.run !== state.run || before.id !== state.id) {
    drawProgram();
    const i = selectedAt();
    if (i !== undefined) announce(`Program ${state.id} selected, mean error ${percent(shownRun().value("mean_error", i))}`);
  }
  if (before.view !== state.view) scrollTo({ top: 0 });
  showAll();
  if (before.run !== state.run) showState();
}

/** The run's name, or a choice among several. */
function drawWhich() {
  const which = document.getElementById("which");
  if (state.runs.length === 1) return fill(which, make("span", { class: "mono" }, shownRun().name));
  if (!page.which) {
    page.which = choice("run", Object.fromEntries(state.runs.map((run, k) => [k, run.name])), (k) => go({ run: Number(k), id: state.runs[Number(k)].champion }));
    fill(which, page.which.node);
  }
  page.which.value = String(state.run);
  return which;
}

function makeTabs(content) {
  const tabs = document.getElementById("tabs");
  for (const entry of viewsHere()) {
    const view = new LazyView(entry);
    page.views.set(entry.key, view);
    content.append(view.node);
    tabs.append(make("button", { type: "button", role: "tab", id: `tab-${entry.key}`, "aria-controls": `view-${entry.key}`, on: { click: () => go({ view: entry.key }) } }, entry.title));
  }
  tabs.addEventListener("keydown", moveTab);
}

/** Arrow keys, Home and End go to other tabs. */
function moveTab(event) {
  const keys = [...page.views.keys()];
  const at = keys.indexOf(state.view);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: keys.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const key = keys[(to + keys.length) % keys.length];
  document.getElementById(`tab-${key}`).focus({ preventScroll: true });
  go({ view: key });
}

function makeSwitches() {
  const theme = choice("theme", THEMES, setTheme);
  theme.value = page.theme;
  document.getElementById("switches").append(theme.node);
  DARK.addEventListener("change", () => { if (page.theme === "system") setTheme("system"); });
  NARROW.addEventListener("change", () => refresh({ data: true }));
  document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main").focus(); });
}

async function start() {
  setTheme(storedTheme());
  const content = document.getElementById("content");
  try {
    state.document = await readDocument();
  } catch (problem) {
    fill(content, missing(`The run could not be read: ${problem.message}. Reload the page, or export it again.`));
    return;
  }
  state.runs = state.document.runs.map((raw) => new Run(raw));
  if (!state.runs.length) return void fill(content, missing("There is no run to show.", "evolve run"));
  fill(content);
  makeTabs(content);
  makeSwitches();
  readHash([...page.views.keys()]);
  addEventListener("hashchange", moved);
  drawProgram();
  showAll();
  showState();
  document.documentElement.dataset.ready = "true";
  if (state.document.live) follow();
}

start();
