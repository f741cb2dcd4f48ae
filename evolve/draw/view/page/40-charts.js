"use strict";

// Charts: plotly with the page's colours, a summary for those who do not see them, and the same figures as a table.

/** Okabe and Ito's colours, which people of all kinds of colour vision tell apart. The palest or darkest comes last. */
const ON_LIGHT = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const ON_DARK = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#0072b2"];
const palette = () => (document.documentElement.dataset.theme === "dark" ? ON_DARK : ON_LIGHT);
const CONFIG = { displaylogo: false, displayModeBar: false, responsive: true, doubleClick: "reset" };
const NARROW = matchMedia("(max-width: 760px)");
const TOUCH = matchMedia("(pointer: coarse)");

/** Text for plotly, which would take some tags in it for markup. */
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** A colour of the style sheet. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The scale of shades on which the lowest errors stand out from the background, in either theme. */
const shades = () => ({ colorscale: "Cividis", reversescale: inDark() });

const inDark = () => document.documentElement.dataset.theme === "dark";

/** Margins that hold the axes and a legend above. Where plotly finds its own, it draws thousands of points twice. */
const roomyMargin = (right = 16) => ({ l: 62, r: right, t: NARROW.matches ? 118 : 44, b: 52 });

/** A text that is shortened in its middle. */
const shortened = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}`);

/** A name as plotly shows it beside a line or an axis, and in a hover template, where a percent sign begins a place. */
const shortName = (text, most = 34) => plain(shortened(text, most));
const hoverName = (text, most = 34) => shortName(text, most).replace(/%/g, "%%");

/** A text as plotly shows it whole, in lines of about so many characters that end at spaces. */
const wrapped = (text, most) => (text.match(new RegExp(`\\S.{0,${most - 1}}(?=\\s|$)|\\S+`, "g")) ?? []).map(plain).join("<br>");

/** An axis with its title; `more` overrides. */
function axis(title, more = {}) {
  return {
    title: { text: plain(title), standoff: 8 }, gridcolor: colour("grid"), linecolor: colour("strong-line"), zerolinecolor: colour("grid"),
    tickcolor: colour("strong-line"), automargin: true, ...more,
  };
}

/** An axis of cells with these names, at 0, 1, 2 and so on. */
const cellAxis = (title, names, more = {}) => axis(title, { tickvals: range(names.length), ticktext: names, showgrid: false, zeroline: false, ...more });

/** A logarithmic axis whose ticks are numbers as people write them. */
const logAxis = (title, more = {}) => axis(title, { type: "log", tickformat: ",~r", nticks: 8, ...more });

/** A logarithmic axis over [low, high], with ticks at 1, 2 and 5 of every decade where there are several. */
function logRangeAxis(title, low, high, more = {}) {
  const ticks = high / low > 40 && NARROW.matches ? { dtick: 1 } : high / low > 8 ? { dtick: "D2" } : {};
  return logAxis(title, { range: [low, high].map(Math.log10), ...ticks, ...more });
}

/** [low, high] of a logarithmic axis that shows these positive numbers, but for the largest ones beyond a share of them. */
function rangeOf(values, share = 1) {
  const sorted = values.filter((x) => isNumber(x) && x > 0).sort((a, b) => a - b);
  return sorted.length ? [sorted[0] / 1.1, quantile(sorted, share) * 1.15] : [1, 10];
}

/** The layout of every chart, with what is special about one. */
function layoutOf(more, height) {
  return {
    height, autosize: true, margin: { l: 8, r: 12, t: 12, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'Liberation Sans', sans-serif", size: 12, color: colour("ink") },
    colorway: palette(), hovermode: "closest", dragmode: TOUCH.matches ? false : "zoom", uirevision: "same",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("strong-line"), font: { color: colour("ink"), size: 12 }, align: "left" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left", traceorder: "normal" },
    ...more,
  };
}

/** The bar that explains a heat map's colours. */
function colourBar(title) {
  return { title: { text: title, side: "right" }, thickness: 12, outlinewidth: 0, tickcolor: colour("strong-line"), len: 0.9 };
}

/** What is said of a point under the mouse: lines of text. */
const said = (...lines) => lines.map(plain).join("<br>");

/**
 * A chart with its heading, tools, summary and table. `draw` takes {traces, layout, summary, table, empty}: `table` is a
 * function, called when the user opens the table; `empty` is shown instead of a chart; `width`: the least, in pixels. A point whose `customdata` is the
 * id of a program selects it. A `wide` chart may be wider than its card, where it scrolls.
 */
class Chart {
  constructor(title, { height = 420, file = "chart", cells = false, wide = false } = {}) {
    this.title = title;
    this.cells = cells;
    this.height = height;
    this.plot = make("div", { class: "plot", role: "img" });
    this.ring = make("div", { class: cells ? "ring cell" : "ring", "aria-hidden": "true", hidden: true });
    this.marked = null;
    this.summary = make("p", { class: "note" });
    this.rows = make("div");
    this.details = make("details", { on: { toggle: () => this.fillTable() } }, make("summary", {}, "Show as table"), this.rows);
    const reset = button("Reset zoom", () => this.resetZoom(), { "aria-label": `Reset zoom: ${title}` });
    const save = button("Save image", () => this.save(file), { "aria-label": `Save image: ${title}` });
    this.tools = make("div", { class: "chart-tools" }, reset, save);
    const head = make("div", { class: "chart-head" }, make("h3", {}, title), this.tools);
    this.nothing = make("div");
    this.node = make("section", { class: "card" }, head, this.nothing, make("div", { class: "frame", ...(wide ? { tabindex: "0", role: "region", "aria-label": `${title}, scrolls` } : {}) }, this.plot, this.ring), this.summary, this.details);
    this.drawn = false;
  }

  draw({ traces = [], layout = {}, summary = "", table: makeTable = null, empty = null, height = null, width = 0 }) {
    this.makeTable = makeTable;
    this.details.hidden = !makeTable;
    this.summary.textContent = summary;
    this.summary.hidden = !summary;
    this.tools.hidden = this.plot.parentElement.hidden = Boolean(empty);
    fill(this.nothing, empty);
    this.fillTable();
    if (empty) return;
    this.plot.setAttribute("aria-label", `Chart: ${this.title}. ${summary}`);
    this.plot.style.minWidth = `${width}px`; // what is wider than the page scrolls
    const size = height ?? (NARROW.matches ? Math.min(this.height, 360) : this.height);
    Plotly.react(this.plot, traces, layoutOf(layout, size), CONFIG);
    this.layout = layout;
    if (this.drawn) return;
    this.drawn = true;
    this.plot.on("plotly_click", (event) => this.clicked(event));
    this.plot.on("plotly_afterplot", () => this.placeRing());
  }

  clicked(event) {
    const id = event.points.map((point) => point.customdata).find(isNumber);
    if (id !== undefined) select(id);
  }

  /** Ring the point [x, y] of the selected program, none for null. The ring is ours: a trace of plotly's would redraw all. */
  mark(point) {
    this.marked = point && point.every(isNumber) ? point : null;
    this.placeRing();
  }

  placeRing() {
    const axes = this.drawn ? this.plot._fullLayout : null;
    this.ring.hidden = true;
    if (!axes?.xaxis?.d2p || !this.marked) return;
    const [left, top] = [axes.xaxis, axes.yaxis].map((a, k) => a.d2p(this.marked[k]));
    const inside = left >= 0 && left <= axes.xaxis._length && top >= 0 && top <= axes.yaxis._length;
    if (!inside) return;
    if (this.cells) {
      this.ring.style.width = `${Math.abs(axes.xaxis.d2p(1) - axes.xaxis.d2p(0))}px`;
      this.ring.style.height = `${Math.abs(axes.yaxis.d2p(1) - axes.yaxis.d2p(0))}px`;
    }
    this.ring.style.left = `${left + axes.xaxis._offset}px`;
    this.ring.style.top = `${top + axes.yaxis._offset}px`;
    this.ring.hidden = false;
  }

  /** Scroll a wide chart until an abscissa is in its middle. */
  reveal(x) {
    const { xaxis } = this.plot._fullLayout;
    const frame = this.plot.parentElement;
    frame.scrollLeft = xaxis._offset + xaxis.d2p(x) - frame.clientWidth / 2;
  }

  resetZoom() {
    const whole = (name) => {
      const range = this.layout[name]?.range;
      return range ? { [`${name}.range`]: [...range] } : { [`${name}.autorange`]: this.layout[name]?.autorange ?? true };
    };
    Plotly.relayout(this.plot, { ...whole("xaxis"), ...whole("yaxis") });
  }

  fillTable() {
    if (this.details.open && this.makeTable) fill(this.rows, this.makeTable());
    else fill(this.rows);
  }

  async save(name) {
    const { clientWidth: width, clientHeight: height } = this.plot;
    await Plotly.downloadImage(this.plot, { format: "svg", filename: `evolve-${name}`, width, height });
  }
}

/** At most `most` of these positions, evenly spaced. */
function thinned(positions, most) {
  if (positions.length <= most) return positions;
  return range(most).map((k) => positions[Math.floor((k * positions.length) / most)]);
}

/** What a point of a program says when the mouse is on it. */
function hover(run, i) {
  const more = run.candidates.consistent[i] === false ? " · inconsistent" : "";
  return said(`program ${run.candidates.id[i]} · ${run.operator(i)}`, `mean error ${percent(run.value("mean_error", i))} · group-out ${percent(run.value("group_out", i))}`, `complexity ${count(run.value("complexity", i))}${more}`);
}

/** A line of steps, the `k`-th of up to three in a chart; a single point is a mark. */
function stepTrace(name, x, y, k, hovertemplate) {
  const line = { shape: "hv", color: palette()[k], width: 2.5, dash: ["solid", "dash", "dot"][k] };
  return { type: "scatter", mode: x.length > 1 ? "lines" : "markers", name, x, y, line, hovertemplate };
}

/** A scatter trace of programs at these positions, which can be selected. */
function programTrace(run, positions, x, y, more) {
  return {
    type: "scatter", mode: "markers", x: positions.map(x), y: positions.map(y), customdata: positions.map((i) => run.candidates.id[i]),
    text: positions.map((i) => hover(run, i)), hoverinfo: "text", ...more,
  };
}
