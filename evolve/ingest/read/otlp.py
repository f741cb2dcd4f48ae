"""Spans from OTLP JSON, as the OpenTelemetry collector's file exporter writes it, with attributes as plain values.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: 64-bit integers are encoded as decimal strings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

MALFORMED = "spans or events that are not valid OTLP, dropped"
UNKNOWN_KIND = "attributes of an unknown kind, dropped"
BAD_VALUE = "attributes whose value does not fit their kind, dropped"
_LARGEST = 2**63

Attributes = dict[str, Any]


def spans(line: Any, tally: Counter[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(scope name, span) of every span of one exported line."""
    for resource in _list(line, "resourceSpans", tally):
        for scoped in _list(resource, "scopeSpans", tally):
            scope = scoped.get("scope")
            name = scope.get("name") if isinstance(scope, dict) else None
            for span in _list(scoped, "spans", tally):
                if isinstance(name, str) and isinstance(span.get("name"), str):
                    yield name, span
                else:
                    tally[MALFORMED] += 1


def events(span: dict[str, Any], tally: Counter[str]) -> Iterator[tuple[str, int, Attributes]]:
    """(name, epoch time in ns or 0 if missing, attributes) of every event of a span."""
    if span.get("events") is None:
        return
    for event in _list(span, "events", tally):
        name = event.get("name")
        if not isinstance(name, str):
            tally[MALFORMED] += 1
            continue
        yield name, whole(event.get("timeUnixNano"), tally) or 0, attributes(event.get("attributes"), tally)


def attributes(pairs: Any, tally: Counter[str]) -> Attributes:
    """Attributes by key; values are str, int (within 64 bits), float or bool."""
    values: Attributes = {}
    if not isinstance(pairs, list):
        tally[MALFORMED] += pairs is not None
        return values
    for pair in pairs:
        try:
            ((kind, value),) = pair["value"].items()
            key = pair["key"]
            if kind == "intValue":
                # A fast path: there are millions of these, and nearly all are short runs of digits.
                short = type(value) is str and len(value) < 19 and value.isdecimal()
                value = int(value) if short else whole(value, tally)
            elif kind == "doubleValue":
                value = float(value)
            elif kind == "stringValue":
                value = value if isinstance(value, str) else None
            elif kind == "boolValue":
                value = value if isinstance(value, bool) else None
            else:
                tally[UNKNOWN_KIND] += 1
                continue
            if value is not None:
                values[key] = value
            elif kind != "intValue":
                tally[BAD_VALUE] += 1
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            tally[BAD_VALUE] += 1
    return values


def whole(value: Any, tally: Counter[str]) -> int | None:
    """A 64-bit whole number, written as a number or as decimal digits; anything else is counted and gives None."""
    try:
        number = int(value) if isinstance(value, str) else value
        if type(number) is float and number.is_integer():
            number = int(number)
        if type(number) is int and -_LARGEST <= number < _LARGEST:
            return number
    except ValueError:
        pass
    tally[BAD_VALUE] += 1
    return None


def _list(mapping: Any, key: str, tally: Counter[str]) -> list[dict[str, Any]]:
    """The mappings of the list under `key`; anything else is counted."""
    items = mapping.get(key) if isinstance(mapping, dict) else None
    if not isinstance(items, list):
        tally[MALFORMED] += 1
        return []
    mappings = [item for item in items if isinstance(item, dict)]
    tally[MALFORMED] += len(items) - len(mappings)
    return mappings
