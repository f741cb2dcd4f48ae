"""`evolve show --check`: the gates of a search as invariants, physical consistency, and the fields for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from evaluator.assess import foreknown
from evaluator.judge.gates import Gate, Theta, deployments_of, judge
from evaluator.judge.physics import hardware_checks, known_kernel_sums
from evaluator.judge.sweep import decode_batch
from evaluator.judge.variants import known_variants
from evolve import __version__
from evolve.inspect.show import Description, at_limits, describe
from evolve.output.columns import words, wrapped
from evolve.output.printing import more, note, prose, show
from evolve.output.table import Table
from evolve.run.program import Source
from simulator.clock.bind import Deployments, bind
from simulator.clock.fields import Active, raw_row
from simulator.common.json import JsonObject
from simulator.common.text import counted
from simulator.language.opcodes import Code, assemble
from simulator.schema import READABLE
from simulator.serving.experiment import Experiment
from simulator.serving.facts import left_out
from simulator.serving.known import datasheet_deployments
from translate_go.batch import go_field

INVARIANTS = {
    "finite": "INV-M-1",
    "deterministic": "INV-M-2",
    "pure": "INV-M-3",
    "quick": "INV-M-4",
    "monotone": "INV-M-5",
}
ALIGNMENT_LEGEND = """\
learned from: the attributes of a server's traces that show a field, or a file or option of `evolve ingest`; empty for
what is computed from other fields, and for kernels, which have tables. Go, expression: as `evolve emit` writes them."""
LIMIT_MS = 1.0  # to compute one step of 128 requests
NOTABLE = 0.05  # share by which a step that gets shorter with one more decode or prompt token is worth a line
DECODES, PROMPT_TOKENS = 256, 2048  # up to which steps are compared one by one
REPEATS = 20


@dataclass(frozen=True)
class CheckVerdict:
    """A program, the gates it was held to, and what the models of their deployments have that no field counts.

    shorter: the steps that get shorter with one more decode or prompt token, the largest fall of each in a line.
    """

    description: Description
    gates: tuple[Gate, ...]
    left_out: tuple[str, ...]
    shorter: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return all(gate.passes for gate in self.gates)

    def to_json(self) -> JsonObject:
        gates = [asdict(g) | {"invariant": INVARIANTS.get(g.name)} for g in self.gates]
        notes = {"left_out": list(self.left_out), "shorter": list(self.shorter)}
        return {**self.description.to_json(), "gates": gates, **notes, "ok": self.ok}


def check(source: Source, hardware: bool, experiments: Sequence[Experiment]) -> CheckVerdict:
    """Hold a program to the gates of a search, on the deployments of the experiments.

    `hardware`: also to datasheets and measured kernels, of the shipped models.
    """
    program = source.complete
    deployments = deployments_of(experiments)
    code, theta = assemble(program), program.theta
    finite, *others = judge(code, theta, deployments)
    gates = [finite, *_language(code, theta, next(iter(deployments.facts.values()))), *others]
    judged_on = [deployments.facts]
    if hardware and finite.passes:
        gates += hardware_checks(code, theta, known_variants())
        judged_on += [datasheet_deployments(), known_kernel_sums().deployments.facts]
    notes = left_out(named for each in judged_on for named in each.items())
    shorter = _shorter(code, theta, deployments) if finite.passes else ()
    return CheckVerdict(describe(source), tuple(gates), notes, shorter)


def _shorter(code: Code, theta: Theta, deployments: Deployments) -> tuple[str, ...]:
    """The largest notable fall of a step from one batch to the next, in decodes and in prompt tokens.

    A search compares only some batches: a constant in a condition may let a step fall between two of them.
    """
    bound, lines = deployments.bind(code, theta), []
    decodes = [[Active(512, 600, 1) for _ in range(n)] for n in range(1, DECODES + 1)]
    prompts = [[Active(PROMPT_TOKENS, 0, n)] for n in range(1, PROMPT_TOKENS + 1)]
    for what, batches in (("decode", decodes), ("prompt token", prompts)):
        steps_us = np.fmax(bound.steps_us(np.array([raw_row(batch) for batch in batches])), 1.0)  # as the clock does
        ratio = steps_us[:, 1:] / steps_us[:, :-1]
        d, i = divmod(int(ratio.argmin()), ratio.shape[1])
        if ratio[d, i] < 1.0 - NOTABLE:
            before, after = steps_us[d, i : i + 2]
            step = f"{deployments.names[d]}, {before:,.0f} us with {counted(i + 1, what)}, {after:,.0f} us with {i + 2}"
            lines.append(f"a step gets shorter with one more {what}: {step}")
    return tuple(lines)


def _language(code: Code, theta: Theta, facts: Mapping[str, float]) -> list[Gate]:
    """The invariants that the language guarantees by its construction, and how long a step takes to compute."""
    batch = decode_batch(128, 512)
    bound = bind(code, theta, facts)
    raw = raw_row(batch)
    same = np.array_equal(bound.step_us(raw), bound.step_us(raw), equal_nan=True)
    elapsed = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        bound.step_us(raw_row(batch))
        elapsed.append(1e3 * (time.perf_counter() - start))
    fastest = min(elapsed)
    slow = ""
    if fastest >= LIMIT_MS:
        slow = f"a step of 128 requests takes {fastest:.2f} ms to compute: shorten the program"
    return [
        Gate("deterministic", bool(same), "by construction: no state, no randomness, no clock"),
        Gate("pure", True, "by construction: the text is parsed, never executed; batch and deployment are only read"),
        Gate("quick", not slow, f"{fastest:.3f} ms for a step of 128 requests here, at most {LIMIT_MS:g}", slow),
    ]


def print_check(verdict: CheckVerdict, verbose: bool = False) -> None:
    """A line of counts, then a row for each gate, with what was measured if `verbose`; complaints in full."""
    description = verdict.description
    refusals = [g for g in verdict.gates if not g.passes]
    outcome = "refused: " + ", ".join(g.name for g in refusals) if refusals else "ok"
    prose(f"{description.source.name}: {outcome}: {description.counts}")
    rows = [
        (
            g.name,
            INVARIANTS.get(g.name, ""),
            "ok" if g.passes else "NO",
            *([g.measured or g.complaint] if verbose else []),
        )
        for g in verdict.gates
    ]
    columns = [*words("gate", "invariant", ""), *(wrapped("measured") if verbose else ())]
    show(Table.of("Gates, at the program's constants", columns, rows))
    for text in at_limits(description):
        prose(f"- note: {text}")
    if refused := foreknown(description.source.program):
        prose(f"- note: a search refuses it: {refused.why}")
    for text in (*verdict.shorter, *verdict.left_out):
        prose(f"- note: {text}")
    for g in refusals:
        prose(f"- {g.name}: {g.complaint}")
    more([] if verbose else ["what was measured"], explained=True)


def fields_json() -> JsonObject:
    """Every field that a program may read, as JSON values."""
    rows: list[JsonObject] = [
        {"field": f"{f.scope}.{f.name}", "unit": f.unit, "meaning": f.meaning, "formula": f.formula or None}
        | ({"curve": f.curve, "at": f.at} if f.curve else {})
        | {"learned_from": f.learned_from or None, "go": asdict(go_field(f.scope, f.name))}
        for f in READABLE.values()
    ]
    return {"engine": __version__, "data": None, "seeds": [], "fields": rows}


def print_fields(verbose: bool = False) -> None:
    """Every field that a program may read; if `verbose` also its formula, what shows it in a server, and its Go."""
    rows = [
        (f"{f.scope}.{f.name}", f.unit, f.meaning, f"curve {f.curve} at {f.at}" if f.curve else f.formula)
        for f in READABLE.values()
    ]
    title = "Fields: b the batch, s the deployment, r the request"
    if not verbose:
        show(Table.of(title, [words("field", "unit"), wrapped("meaning")], [cells[:3] for cells in rows]))
        more(["formulas, what shows a field in traces, Go"], explained=True)
        return
    note("PI: a request's tokens done before the step. NN: its new tokens in the step.")
    show(Table.of(title, [words("field", "unit"), wrapped("meaning", "formula")], rows))
    note(ALIGNMENT_LEGEND)
    rows = []
    for f in READABLE.values():
        go = go_field(f.scope, f.name)
        same = go.variable == go.expression
        rows.append((f"{f.scope}.{f.name}", f.learned_from, go.variable, "" if same else go.expression))
    columns = [words("field"), wrapped("learned from"), words("Go"), wrapped("expression")]
    show(Table.of("Fields in traces and in Go", columns, rows))
