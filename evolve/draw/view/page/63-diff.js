"use strict";

// Differences: the text of the selected program beside that of a parent or of the champion, line by line.

VIEWS.push({ section: "Compare", key: "diff", title: "Differences", make: makeDiff, lacks: noProgram });

function makeDiff() {
  const other = choice("compare with", {}, () => draw(shownRun()));
  const text = make("div", { class: "stack" });
  const draw = (run) => fill(text, diffOf(run, Number(other.value), state.id));
  return {
    node: viewNode([other], card("Changes of its text", text)),
    select(run) {
      const parents = parentsHere(run, state.id).map((id) => [id, `parent ${id} (${run.operator(run.at(id))})`]);
      const champion = run.champion === null || run.champion === state.id ? [] : [[run.champion, `champion ${run.champion}`]];
      const before = other.value;
      other.offer(Object.fromEntries([...parents, ...champion]));
      if (other.value !== before) other.value = String([...parents, ...champion][0]?.[0]);
      other.node.hidden = !parents.length && !champion.length;
      draw(run);
    },
  };
}

/** [mark, line] for every line of both: " " in both, "-" in the first only, "+" in the second only. */
function lineDiff(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  // common[i][j]: the length of the longest common subsequence of a from i and b from j.
  const common = range(a.length + 1).map(() => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { lines.push([" ", a[i++]]); j++; }
    else if (j >= b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) lines.push(["-", a[i++]]);
    else lines.push(["+", b[j++]]);
  }
  return lines;
}

const MOST_LINES = 1500; // of a text: the table of a diff has the square of it

/** The difference between two programs as an element. */
function diffOf(run, before, after) {
  const [a, b] = [run.at(before), run.at(after)];
  if (a === undefined) return missing("This is the champion, and this page has no parents of it: it is a seed, or its parents were left out.");
  const texts = [run.candidates.text[a], run.candidates.text[b]];
  if (texts.includes(null) || texts.includes(undefined)) return missing("This page lacks the text of one of the two.", `evolve show ${programName(before)}`);
  if (texts.some((text) => text.split("\n").length > MOST_LINES)) return missing("One of the texts is too long to compare here.");
  const lines = lineDiff(...texts);
  const linesWith = (mark) => lines.filter(([m]) => m === mark).length;
  const kinds = { "+": "added", "-": "removed" };
  return [
    make("p", { class: "note" }, `From program ${before} to program ${after}: ${counted(linesWith("+"), "line")} added (+), ${counted(linesWith("-"), "line")} removed (−).`),
    textBox(lines.map(([mark, line]) => [kinds[mark], `${mark} ${line}`]), `Changes from program ${before} to program ${after}`),
  ];
}
