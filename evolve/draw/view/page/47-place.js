"use strict";

// Where the user is: scrolled boxes and the keyboard's focus, which outlive that a view is drawn again.

/** What is read out of an element: its label, otherwise its text. */
const nameOf = (element) => element.getAttribute("aria-label") ?? element.textContent;

/** The box with this label in an element. */
const boxOf = (element, label) => [...element.querySelectorAll("[role=region]")].find((box) => nameOf(box) === label);

/** Draw an element's content again by `draw`, and put its boxes and the focus back where they were. */
function keepingPlace(element, draw) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && { id: focused.id, name: nameOf(focused), box: focused.closest("[role=region]")?.getAttribute("aria-label") };
  const boxes = [...element.querySelectorAll("[role=region]")].map((box) => [nameOf(box), box.scrollTop, box.scrollLeft]);
  draw();
  for (const [label, top, left] of boxes) {
    const box = boxOf(element, label);
    if (box) [box.scrollTop, box.scrollLeft] = [top, left];
  }
  if (focused && !focused.isConnected) (sameAs(element, place) ?? element).focus({ preventScroll: true });
}

/** The element that has replaced the one that was at this place; undefined if none has. */
function sameAs(element, { id, name, box: label }) {
  if (id) return document.getElementById(id) ?? undefined;
  const box = label === undefined ? undefined : boxOf(element, label);
  if (box && label === name) return box;
  return [...(box ?? element).querySelectorAll("a, button, summary")].find((candidate) => nameOf(candidate) === name);
}
