"use strict";

// Elements. Text only ever becomes a text node, so nothing that a run says can be markup.

/** An element with attributes (`on`: listeners by event) and children: nodes, texts, lists of them, or null. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") Object.entries(value).forEach(([event, listener]) => element.addEventListener(event, listener));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...present(children));
  return element;
}

/** Children as they are appended: those of inner lists too, and none for what is missing. */
const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

/** Replace what is in an element. */
function fill(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/** A part of a view with its heading. */
const card = (title, ...children) => make("section", { class: "card" }, make("h3", {}, title), children);

/** What is missing, and the command that makes it. */
function missing(text, command = null) {
  return make("div", { class: "empty" }, make("p", {}, text), command ? make("p", {}, make("code", {}, command)) : null);
}

/** A button. */
const button = (text, action, attributes = {}) => make("button", { type: "button", class: "button", on: { click: action }, ...attributes }, text);

/** A button that selects a program. */
function idButton(id) {
  return button(String(id), () => select(id), { class: "id", "aria-label": `Select program ${id}` });
}

let lastLabel = 0;

/** A choice with its label. `options`: texts by value. `changed` is called after the user chose. */
function choice(label, options, changed) {
  const id = `choice-${++lastLabel}`;
  const list = make("select", { id, on: { change: () => changed(list.value) } });
  const node = make("label", { for: id }, label, list);
  const offer = (texts) => {
    const before = list.value;
    fill(list, Object.entries(texts).map(([value, text]) => make("option", { value }, text)));
    if (before in texts) list.value = before;
  };
  offer(options);
  return { node, offer, list, get value() { return list.value; }, set value(x) { list.value = x; } };
}

/** Names and values in a list of descriptions; a value may be a node. */
function facts(pairs) {
  return make("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

/** Lines [class, text] of program text, which wrap within their box, so that nothing of them is hidden: the rest of a line is indented more than its beginning. */
const textBox = (lines, label) => make("pre", { class: "text", role: "group", "aria-label": label }, lines.map(([kind, line]) => {
  const indent = line.match(/^[-+ ]*/)[0];
  return make("span", { class: kind, style: `--indent: ${Math.min(indent.length, 12)}` }, make("i", {}, indent), `${line.slice(indent.length)}\n`);
}));

/** Read-only text of a program. */
const programText = (text, label) => textBox(text.split("\n").map((line) => [null, line]), label);

/** Tell screen readers something without showing it. */
function announce(text) {
  document.getElementById("announcer").textContent = text;
}
