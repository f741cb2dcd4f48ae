"""Many runs as tables: what is planted in one cell, GPU or bin shows there, and nothing of a run left out shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from archive.score import Errors
from evaluator.assess import AssessData, Scored, prepare
from evaluator.cells import cell_of
from evaluator.diagnose.describe import describe, groups_of
from evaluator.diagnose.diagnose import diagnose
from evaluator.diagnose.examine import Examination, examine
from evaluator.diagnose.tables import Listing, disagreement, tables
from evaluator.diagnose.trial import left_out, trial
from evaluator.group_out import group_out
from evolve.run.program import load
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.serving.bundled import SERVING, bundled_experiments, bundled_file

KERNELS = load("kernels").complete
CLOSED = {
    prefix: [e for e in bundled_file(SERVING) if e.quality == "clean" and e.id.startswith(prefix)]
    for prefix in ("gpt-oss-120b-mxfp4-b200-tp1-1k-1k", "minimax-m2.5-fp8-b200", "minimax-m2.5-fp8-h200")
}
RATE = [e for e in bundled_experiments() if e.id in ("llama-2-7b-tp1-codegen", "llama-2-70b-tp4-roleplay")]
# runs in steps come first here: the load stages of the others are not the first rows of the data
MIXED = [*(e for runs in CLOSED.values() for e in runs[:4]), *RATE]
OSS, BLOCK_B200, BLOCK_H200 = "gpt-oss-120b mxfp4 B200", "MiniMax-M2.5 fp8_block B200", "MiniMax-M2.5 fp8_block H200"


@pytest.fixture(scope="module")
def data() -> AssessData:
    return prepare(MIXED, [1])


def shown(listings: list[Listing]) -> dict[str, list[str]]:
    """The lines of each table by the first words of its heading."""
    return {x.heading.split(" (")[0].split("\n")[0].split(",")[0]: list(x.lines) for x in listings}


def made_up(data: AssessData, itl: dict[str, float]) -> Examination:
    """An examination by which the ITL of a cell errs by so many percent, on runs left out by twice as many."""
    rows = [(e, itl[cell_of(e)]) for e in data.fit.experiments]
    fitted = tuple(Errors(e.id, 4.0 if not e.workload.closed else None, -20.0, x) for e, x in rows)
    twice = tuple(Errors(e.id, 8.0 if not e.workload.closed else None, -40.0, 2 * x) for e, x in rows)
    return Examination(fitted, {"models": twice, "hardware": fitted}, (), (), ())


def test_errors_by_cell_and_by_what_runs_share_by_hand(data: AssessData) -> None:
    cells = groups_of(data)
    assert [cell for cell in cells if "B200" in cell or "H200" in cell] == [OSS, BLOCK_B200, BLOCK_H200]
    itl = dict.fromkeys(cells, 1.0) | {OSS: -10.0, BLOCK_B200: 6.0, BLOCK_H200: 6.0}
    found = shown(tables(made_up(data, itl), data, cells))
    first = found["Cells"][0]
    # ITL -20 and TTFT -40 weigh 1 and 0.3: (20 + 0.3 * 30) / 1.3 as TTFT is capped at 30; fitted (10 + 0.3 * 20) / 1.3;
    # the mean of both is 17.3. Left out: the mean of the two kinds.
    assert first.startswith(f"C1 {OSS} | 4 | 17.3 | - -20 -10 | - -30 -15 | ")
    by_gpu = dict(line.split(" | ", 1) for line in found["By GPU"])
    # H200 has the runs of one cell, which has a line already; the two cells of B200 have four runs each
    assert by_gpu == {"B200": "8 | - -20 -2 | - -20 -2", "H100": "2 | +4 -20 +1 | +4 -20 +1"}
    assert found["By model"] == ["MiniMax-M2.5 | 8 | - -20 +6 | - -40 +12"]
    assert "By precision" not in found and "By parallelism" not in found  # no folds of these
    assert found["By clients"][-1] == "at a rate | 2 | +4 -20 +1 | +6 -30 +2"
    rate = next(line for line in found["Cells"] if "Llama-2-7b-hf" in line)
    assert rate.endswith("| at a rate")


def test_errors_along_concurrency_are_in_order(data: AssessData) -> None:
    known = made_up(data, dict.fromkeys(groups_of(data), 0.0))
    users = {e.id: e.workload.stages[0].level for e in data.fit.experiments}
    rows = tuple(row._replace(ttft=users[row.experiment], itl=-users[row.experiment]) for row in known.fitted)
    at = [e for e in data.fit.experiments if cell_of(e) == OSS]
    assert [users[e.id] for e in at] == [4.0, 8.0, 16.0, 32.0]
    [line] = [x for x in tables(replace(known, fitted=rows), data, groups_of(data))[0].lines if OSS in x]
    # (4 + 8) / 2 with up to 8 clients, (16 + 32) / 2 with up to 32, no run with more
    assert line.split(" | ")[-2:] == ["+6 +24 .", "-6 -24 ."]


def test_what_a_search_selects_by_is_what_a_question_shows(data: AssessData) -> None:
    """The sizes are the cells' leave-group-out errors. Those of runs in steps need no replay's ratio."""
    known, cells = examine(KERNELS, data), groups_of(data)
    assert len(cells) == 5 and [row.experiment for row in known.fitted] == [e.id for e in MIXED]
    errors = group_out(KERNELS, data.fit.ratio, data.folds)
    assert errors is not None
    lines = tables(known, data, cells)[0].lines
    sizes = {line.split(" | ")[0].split(" ", 1)[1]: float(line.split(" | ")[2]) for line in lines}
    closed = {name: error for name, error in errors.cells if name in (OSS, BLOCK_B200, BLOCK_H200)}
    assert len(closed) == 3 and {name: sizes[name] for name in closed} == pytest.approx(
        closed, abs=0.06
    )  # printed to 0.1
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)


def test_kernels_that_are_filled_in_are_named(data: AssessData) -> None:
    found = shown(tables(examine(KERNELS, data), data, groups_of(data)))["Kernel tables of the cells"]
    lines = {name: text for line in found for names, text in [line.split(" | ")] for name in names.split()}
    # MiniMax has weights in blocks of 8 bits, whose dense products were timed per tensor alone
    assert "timed in fp8: gemm" in lines["C2"] and lines["C2"].startswith("b200_sxm")
    assert "timed in fp8: gemm" in lines["C3"] and lines["C3"].startswith("h200_sxm")
    assert lines["C5"] == "h100_sxm"


def test_programs_that_predict_otherwise_show_where(data: AssessData) -> None:
    slower = parse(unparse(KERNELS).replace("b.kernel_moe_quantized_us", "(b.kernel_moe_quantized_us * 2)", 1))
    assert slower != KERNELS
    found = disagreement(KERNELS, data, {7: slower, 8: KERNELS}, groups_of(data))
    assert found.heading.endswith("where | 7 | 8")
    # the routed experts of quantized weights: not those of Llama
    assert {line.split(" | ")[0] for line in found.lines} == {OSS, BLOCK_B200, BLOCK_H200}
    for line in found.lines:
        assert line.split(" | ")[1].split()[2].startswith("+") and line.split(" | ")[2] == "- +0 +0"


def test_a_diagnosis_finds_the_stages_of_the_replayed_runs(data: AssessData) -> None:
    mixed, alone = diagnose(KERNELS, data), diagnose(KERNELS, prepare(RATE, [1]))
    assert mixed.stages == alone.stages and mixed.worst == alone.worst and len(alone.stages) == 3


def test_a_trial_on_many_runs_is_told_by_cell(data: AssessData) -> None:
    found = trial(unparse(KERNELS), data)
    assert isinstance(found.verdict, Scored)
    assert {row.experiment for row in found.left_out} == set(groups_of(data))
    assert found.left_out == left_out(found.verdict.text, data)
    assert found.known.startswith("cell, signed means | ") and OSS in found.known


def test_a_question_has_nothing_of_runs_that_were_left_out() -> None:
    marked = [replace(e, id=f"secret-{e.id}", model="org/Secret-9B") for e in CLOSED["minimax-m2.5-fp8-b200"][:2]]
    seen = prepare([*MIXED, *marked], [1])

    def text(of: AssessData) -> str:
        return "\n".join(listing.text(len(listing.lines)) for listing in describe(KERNELS, of, {1: KERNELS}))

    assert "Secret-9B" in text(seen)  # what is fitted shows
    assert "ecret" not in text(prepare(MIXED, [1]))
