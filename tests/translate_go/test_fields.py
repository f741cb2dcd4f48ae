"""The Go that is shown for a field is what the emitter writes for it."""

from __future__ import annotations

import re

import pytest

from simulator.language.parse import parse
from simulator.schema import FIELDS, RAW
from translate_go import emit
from translate_go.batch import GoField, go_field


def emitted(step: str, queueing: str = "") -> str:
    """fitted.go of a program, without line breaks and the commas and blanks that they bring."""
    source = emit(parse(f"def step_time(b, s, *, c=1.0): return {step}{queueing}"), target="blis-4")["fitted.go"]
    return re.sub(r"\( ", "(", re.sub(r", \)", ")", re.sub(r"\s+", " ", source)))


@pytest.mark.parametrize("name", [name for scope, name in FIELDS if scope == "b"])
def test_a_batch_field_is_declared_as_shown(name: str) -> None:
    go, text = go_field("b", name), emitted(f"c * b.{name}")
    assert f" {go.variable} := {go.expression} " in text or f" {go.variable} = {go.expression} " in text
    assert bool(go.update) == (name in RAW)
    assert go.update in text
    assert re.search(rf"return (float64\()?c \* {go.variable}\b", text)


@pytest.mark.parametrize("name", [name for scope, name in FIELDS if scope == "s" and name != "reference_step_us"])
def test_a_fact_of_the_deployment_is_read_as_shown(name: str) -> None:
    go = go_field("s", name)
    assert go == GoField(go.variable, go.variable, "")
    assert re.search(rf"return (float64\()?c \* {re.escape(go.variable)}\b", emitted(f"c * s.{name}"))


def test_what_only_the_queue_reads_is_read_as_shown() -> None:
    wait = "\n\n\ndef queueing_time(r, s, *, a=1.0, d=1.0): return a * s.reference_step_us + d * r.input_len"
    text, length = emitted("c", wait), go_field("r", "input_len")
    assert f"a*{go_field('s', 'reference_step_us').variable}" in text.replace(" * ", "*")
    assert f"d*{length.variable}" in text.replace(" * ", "*")
    assert f"m.queueingMicros({length.expression})" in text
