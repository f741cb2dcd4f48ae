"use strict";

// The page: its header, its sections, and what is drawn again when something changes.

const THEMES = { system: "system", light: "light", dark: "dark" };
const DARK = matchMedia("(prefers-color-scheme: dark)");
const page = { views: new Map(), theme: "system" };

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
    readHash(); // there may be a champion now
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
  const shown = page.views.get(state.view);
  document.body.dataset.view = state.view;
  for (const view of page.views.values()) view.node.hidden = view !== shown;
  fill(document.getElementById("notes"), (run?.notes ?? []).map((note) => make("p", {}, note)));
  drawLinks(shown);
  for (const id of ["program", "bar"]) document.getElementById(id).hidden = shown.section === "Plan";
  shown.show();
  document.title = [shown.title, run?.name, "evolve view"].filter(Boolean).join(" · ");
  if (run) drawWhich();
}

/** The links to the sections, and to the views of the one that is shown if it has several. */
function drawLinks({ section, key: shownKey }) {
  const link = (text, id, view, current) => make("a", { id, href: hashOf({ view }), "aria-current": current }, text);
  const views = viewsOf(section);
  const sections = SECTIONS.filter((name) => viewsOf(name).length).map((name) => link(name, `section-${name}`, viewsOf(name)[0].key, name === section && "true"));
  const links = document.getElementById("links");
  keepingPlace(links, () => fill(links, make("div", { class: "sections" }, sections), views.length > 1 ? make("div", { class: "links" }, views.map(({ title, key }) => link(title, `link-${key}`, key, key === shownKey && "page"))) : null));
}

function drawProgram() {
  const panel = document.getElementById("program");
  if (state.runs.length) keepingPlace(panel, () => drawPanel(panel, document.getElementById("bar"), shownRun()));
}

/** Show what the hash says: another run, view or program. Back, forward and a typed address come here too. */
function moved() {
  const before = { ...state };
  readHash();
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
    fill(content, missing(`The data of this page could not be read: ${problem.message}. Reload the page, or export it again.`));
    return;
  }
  state.runs = state.document.runs.map((raw) => new Run(raw));
  if (!offered().length) return void fill(content, missing("There is no run to show.", "evolve run"));
  page.views = new Map(VIEWS.map((view) => [view.key, new LazyView(view)]));
  fill(content, [...page.views.values()].map((view) => view.node));
  makeSwitches();
  readHash();
  addEventListener("hashchange", moved);
  drawProgram();
  showAll();
  if (state.runs.length) showState();
  document.documentElement.dataset.ready = "true";
  if (state.document.live && state.runs.length) follow();
}

start();
