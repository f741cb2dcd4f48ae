"""`evolve check`: the gates that a program meets in a search, as invariants, and its consistency with hardware."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from evaluator.deployments import datasheet_deployments, kernel_deployments
from evaluator.experiments import bundled_experiments
from evaluator.judge.gates import Facts, Gate, deployments_of, judge
from evaluator.judge.kernel_sums import kernel_checks, kernel_sums
from evaluator.judge.physics import physics
from evaluator.judge.sweep import decode_batch
from evolve.program.show import counts, limits, outside, show_json
from evolve.report.run import console, new_table, show
from evolve.run.program import Source
from simulator.bind import bind
from simulator.fields import raw_row
from simulator.language.ir import Program
from simulator.language.opcodes import assemble

INVARIANTS = {
    "finite": "INV-M-1",
    "deterministic": "INV-M-2",
    "pure": "INV-M-3",
    "quick": "INV-M-4",
    "monotone": "INV-M-5",
}
LIMIT_MS = 1.0  # of one step of 128 requests
REPEATS = 20


def check(source: Source, hardware: bool) -> dict[str, Any]:
    """What `evolve check` prints, as plain values; `ok` is whether every gate passes. `hardware`: also the four
    consistency checks, and those with measured kernels."""
    program = source.complete
    deployments = deployments_of(bundled_experiments())
    finite, *others = judge(program, deployments)
    gates = [finite, *_language(program, deployments), *others]
    if hardware and finite.passes:
        gates += physics(program, datasheet_deployments())
        gates += kernel_checks(program, kernel_sums(kernel_deployments()))
    shown = [asdict(g) | {"invariant": INVARIANTS.get(g.name)} for g in gates]
    return show_json(source) | {"gates": shown, "ok": all(g.passes for g in gates)}


def _language(program: Program, deployments: Facts) -> list[Gate]:
    """The invariants that the language gives by its construction, and how long a step takes to compute."""
    batch = decode_batch(128, 512)
    bound = bind(assemble(program), program.theta, next(iter(deployments.values())))
    raw = raw_row(batch)
    same = np.array_equal(bound.step_us(raw), bound.step_us(raw), equal_nan=True)
    elapsed = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        bound.step_us(raw_row(batch))
        elapsed.append(1e3 * (time.perf_counter() - start))
    fastest = min(elapsed)
    slow = (
        "" if fastest < LIMIT_MS else f"a step of 128 requests takes {fastest:.2f} ms to compute: shorten the program"
    )
    return [
        Gate("deterministic", bool(same), "by construction: no state, no randomness, no clock"),
        Gate("pure", True, "by construction: the text is parsed, never executed; batch and deployment are only read"),
        Gate("quick", not slow, f"{fastest:.3f} ms for a step of 128 requests here, at most {LIMIT_MS:g}", slow),
    ]


def print_check(result: dict[str, Any]) -> None:
    """A line of counts, then a row for each gate; complaints in full."""
    out = console()
    verdict = "ok" if result["ok"] else "refused: " + ", ".join(g["name"] for g in result["gates"] if not g["passes"])
    out.print(f"{result['name']}: {verdict}: {counts(result)}", markup=False, soft_wrap=True)
    table = new_table("Gates, at the constants as they stand", "gate|invariant|")
    table.add_column("measured", overflow="fold")
    for g in result["gates"]:
        table.add_row(g["name"], g["invariant"] or "", "ok" if g["passes"] else "NO", g["measured"] or g["complaint"])
    out.print(table) if out.is_terminal else show(out, table)
    for c in filter(outside, result["constants"]):
        text = f"- note: {c['name']} = {c['value']:g} lies outside {limits(c)}: a fit moves it in"
        out.print(text, markup=False)
    for g in result["gates"]:
        if not g["passes"]:
            out.print(f"- {g['name']}: {g['complaint']}", markup=False, soft_wrap=True)
