"use strict";

// Numbers as texts. A value that is not known is a dash.

const UNKNOWN = "–";
const FORMATS = new Map();

/** A number of so many significant digits, with thousands separated. */
function number(x, digits = 3) {
  if (!isNumber(x)) return UNKNOWN;
  if (Math.abs(x) >= 10 ** digits) return Math.round(x).toLocaleString("en");
  if (x !== 0 && Math.abs(x) < 1e-4) return x.toExponential(digits - 1);
  if (!FORMATS.has(digits)) FORMATS.set(digits, new Intl.NumberFormat("en", { maximumSignificantDigits: digits }));
  return FORMATS.get(digits).format(x);
}

/** A whole number with thousands separated. */
const count = (x) => (isNumber(x) ? Math.round(x).toLocaleString("en") : UNKNOWN);

/** A percentage with its unit. */
const percent = (x) => (isNumber(x) ? `${x.toFixed(2)} %` : UNKNOWN);

/** A percentage without its unit, for tables that have it in the head. */
const plainPercent = (x) => (isNumber(x) ? x.toFixed(2) : UNKNOWN);

/** A signed percentage without its unit. */
function signed(x, digits = 1) {
  if (!isNumber(x)) return UNKNOWN;
  const text = Math.abs(x).toFixed(digits);
  return `${Number(text) === 0 ? "" : x > 0 ? "+" : "−"}${text}`;
}

/** A duration of some seconds in words. */
function duration(seconds) {
  if (!isNumber(seconds)) return UNKNOWN;
  if (seconds < 120) return `${number(seconds)} s`;
  if (seconds < 7200) return `${number(seconds / 60)} min`;
  return `${number(seconds / 3600)} h`;
}

/** `1 run`, `2 runs`. */
const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** The share `p` (0 to 1) of sorted numbers, interpolated as numpy does. */
function quantile(sorted, p) {
  const place = (sorted.length - 1) * p;
  const low = Math.floor(place);
  const high = Math.ceil(place);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}
