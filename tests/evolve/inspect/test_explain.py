"""Explanations: terms add up to the steps and latencies that replays have, and say in words what they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tiny_world
from commands import Capsys, as_json, evolve, printed, refused

from evolve.inspect.explain import DECODE, MIXED, Explanation, explain
from evolve.inspect.provenance import provenance
from evolve.inspect.readings import readings
from evolve.run.data import chosen
from evolve.run.folder import open_run
from evolve.run.program import Source, load
from evolve.summary.story import Story
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments, load_experiments

# Everything that the tiny world's runs have: a time per step and per decode, and a wait before the queue.
LINEAR = """
def step_time(b, s, *, floor: us = 3000.0, request: us/request = 60.0, prompt: us/token = 9.0):
    return floor + request * b.decode_reqs + prompt * b.prefill_tokens


def queueing_time(r, s, *, base: us = 9000.0):
    return base
"""


@pytest.fixture(scope="module")
def data(tiny: Path) -> Path:
    return tiny.parent / "data.yaml"


@pytest.fixture(scope="module")
def linear(data: Path) -> Explanation:
    runs = load_experiments(data)
    return explain(Source("linear", LINEAR, parse(LINEAR)), runs[:3], (1,))


def meanings(text: str) -> dict[str, str]:
    return {r.term: r.meaning for r in readings(parse(text)) if r.method == "step_time"}


# ---- what steps and latencies are made of


def test_the_terms_of_a_step_are_those_of_its_mean_batch(linear: Explanation) -> None:
    """The program is linear, so the mean of its terms is the terms of the mean batch, by hand."""
    assert [t.term for t in linear.step_terms] == ["floor", "request * b.decode_reqs", "prompt * b.prefill_tokens"]
    for run in linear.runs:
        for step in run.steps:
            expected = (3000.0, 60.0 * step.decode_reqs, 9.0 * step.prefill_tokens)
            assert step.us == pytest.approx(expected, rel=1e-6)
            assert step.step_us == pytest.approx(sum(expected)) and sum(step.percent) == pytest.approx(100.0)


def test_a_stage_has_steps_of_decodes_alone_and_steps_that_carry_prompts(linear: Explanation) -> None:
    run = linear.runs[0]
    assert [(s.stage, s.kind) for s in run.steps] == [(0, DECODE), (0, MIXED), (1, DECODE), (1, MIXED)]
    for decode, mixed in (run.steps[:2], run.steps[2:]):
        assert decode.prefill_tokens == 0.0 < mixed.prefill_tokens
        assert decode.share + mixed.share == pytest.approx(1.0)
    assert run.steps[2].decode_reqs > run.steps[0].decode_reqs  # at twice the rate


def test_parts_and_terms_add_up_to_the_e2e(linear: Explanation) -> None:
    place = [t.term for t in linear.terms].index("base")
    for run in linear.runs:
        assert sum(run.parts_ms.values()) == pytest.approx(run.e2e_ms, rel=1e-6)
        assert run.parts_ms["queueing"] == pytest.approx(9.0)  # 9,000 us
        assert sum(run.terms_pct) == pytest.approx(100.0)
        assert run.terms_pct[place] == pytest.approx(100.0 * run.parts_ms["queueing"] / run.e2e_ms)


def test_the_steps_of_a_run_that_was_not_observed_go_at_the_predicted_pace(data: Path) -> None:
    one = load_experiments(data)[1]
    program = parse("def step_time(b, s, *, floor: us = 20000.0): return floor")
    runs = one, replace(one, observed=None)
    observed, planned = (explain(Source("p", "", program), [e], (1,)).runs[0] for e in runs)
    # 8/s x 39 gaps x pace decode at once, and the token's own request: 20 ms are predicted, 6.4 observed
    of_decodes = {s.kind: s.decode_reqs for s in planned.steps}
    assert of_decodes[DECODE] == pytest.approx(1.0 + 8.0 * 39 * 0.020, rel=0.02)
    assert {s.kind: s.decode_reqs for s in observed.steps}[DECODE] < 0.5 * of_decodes[DECODE]
    assert planned.observed_e2e_ms is None and observed.observed_e2e_ms == 284.3


# ---- in words


def test_terms_read_as_what_they_are() -> None:
    """Kernels by their table, datasheet times by their multiple, constants by their unit, names by their value."""
    step = "def step_time(b, s, *, g=0.962, m=1.031, c=1.0): return g * b.kernel_gemm_us + m * b.kernel_moe_us + c"
    assert [*meanings(step).values()][:2] == [
        "measured matrix products of all layers (without routed experts), padded tokens: 3.8 % faster than the table",
        "measured routed experts of all layers in 16 bits, else 0: 3.1 % slower than the table",
    ]
    step = "def step_time(b, s, *, w=1.09, e=0.8): return w * b.weight_read_us + b.prefill_gemm_us / e + b.kv_read_us"
    assert [*meanings(step).values()] == [
        "weights read once, routed experts by the share touched, over bandwidth: 1.09 times the datasheet's time",
        "matrix products of prefill over peak: at 80 % of the datasheet's peak",
        "KV cache of the whole batch over bandwidth: the datasheet's time",
    ]
    step = """def step_time(b, s, *, a: us/token = 0.0224, l: us = 46.1, f: us = 2500.0):
    return a * b.kv_decode_sum * s.is_fp8 + l * s.layers + f"""
    assert [*meanings(step).values()] == [
        "sum of PI over decodes: 22.4 us per 1,000 tokens, only with FP8 weights",
        "transformer layers: 46.1 us for each",
        "2,500 us",
    ]
    step = "def step_time(b, s): return b.kernel_moe_us + b.uncaptured * b.kernel_moe_us"
    assert ": as in the table, once more, only if the step" in meanings(step)["b.uncaptured * b.kernel_moe_us"]
    step = """def step_time(b, s, *, c: us/request = 5.0):
    n = max(b.decode_reqs, b.prefill_reqs)
    return c * n * s.tp"""
    larger = "the larger of requests past their prompt and requests still in their prompt"
    assert meanings(step) == {"c * n * s.tp": f"{larger} x tensor parallelism: 5 us per request"}


@pytest.mark.parametrize("name", ["champion", "kernels", "regimes", "roofline", "threshold", "components"])
def test_every_term_has_a_meaning(name: str) -> None:
    program = load(name).complete
    for reading in readings(program):
        assert reading.meaning and "None" not in reading.meaning
    assert {c.name for f in program.functions for c in f.constants} >= {
        n for r in readings(program) for n in r.constants
    }


# ---- where it comes from


def test_the_lineage_of_a_runs_program_is_that_of_its_journal(tiny_run: Path) -> None:
    run = open_run(tiny_run)
    story = Story(run.config)
    for outcome in run.outcomes():
        story.add(outcome)
    told = {row.outcome.proposal.id: row for row in story.rows}
    best = max(run.archive().members(), key=lambda elite: elite.id)
    found = explain(load(f"{tiny_run}:{best.id}"), chosen(run.config.data)[0][:1], (1,))
    line = found.provenance.lineage
    assert line[0].id == best.id and not line[-1].parents and found.provenance.run == str(tiny_run)
    for child, parent in pairwise(line):
        assert child.parents[0] == parent.id
    for a in line:
        assert (a.generation, a.operator) == (told[a.id].generation, told[a.id].outcome.proposal.operator)


def test_the_shipped_champion_is_traced_to_its_seed_and_its_tables() -> None:
    p = explain(load("champion"), bundled_experiments()[:1], (1,)).provenance
    assert (p.lineage[0].id, p.lineage[-1].operator) == (1447, "seed:kernels")  # champion.json, and the journal
    by = {f"{c.method}.{c.name}": c.by for c in p.constants}
    assert by["step_time.gemm"] == "the fitted runs"
    assert by["step_time.kernel_small"].endswith("the rest the prior")
    assert by["completion_time.completion"] == "at its lower bound"
    gemm = next(k for k in p.kernels if k.field == "b.kernel_gemm_us")
    assert gemm.table == "configs/kernels/h100_sxm.parquet" and "logits" not in [o.name for o in gemm.operations]
    assert "aiconfigurator-core 0.12.0" in p.sources[gemm.table]


def test_a_threshold_was_chosen_by_trial_and_has_no_error(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    text = (
        "def step_time(b, s, *, most: request = 4.0, few=3e3, many=4e3): return few if b.decode_reqs < most else many"
    )
    (tmp_path / "p.py").write_text(text)
    assert evolve("fit", tmp_path / "p.py", "--experiments", data, "--out", tmp_path / "q.py") == 0
    verdicts = {c.name: c.by for c in provenance(load(str(tmp_path / "q.py")), []).constants}
    assert verdicts["most"] == "chosen by trial: a threshold has no slope, and so no error"
    assert verdicts["few"] == "the fitted runs, but it is smaller than its error"  # the law of these runs is another
    shown = printed(capsys, "show", tmp_path / "q.py", "-v")
    [line] = [x for x in shown.splitlines() if x.startswith("step_time.most ")]
    assert "chosen by trial" in line


def test_a_program_of_own_runs_is_not_explained_on_others_in_silence(
    data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "p.py").write_text(LINEAR)
    fitted = tmp_path / "q.py"
    assert evolve("fit", tmp_path / "p.py", "--experiments", data, "--out", fitted) == 0
    remedy = "was fitted on dense-chat, dense-code, sparse-chat: give --experiments with their file"
    assert remedy in refused(capsys, "show", "--explain", fitted, "--id", "dense-chat")
    for more, said in ((), True), (("--experiments", data), False):
        assert evolve("show", "--explain", fitted, *more) == 0
        assert (remedy in " ".join(capsys.readouterr().err.split())) == said


def test_a_program_without_a_record_says_so() -> None:
    program = complete(parse(LINEAR))
    p = explain(Source("mine.py", LINEAR, program), bundled_experiments()[:1], (1,)).provenance
    assert p.record is None and p.lineage == () and {c.by for c in p.constants} == {"as written: no record of a fit"}


# ---- the command


def test_show_opens_with_the_errors_and_leaves_the_rest(capsys: Capsys) -> None:
    first, _, *lines, last = printed(capsys, "show", "champion").splitlines()
    assert first.startswith("Mean absolute error on 367 fitted runs: E2E 2.16 %, ") and first.endswith(": pass")
    program = load("champion").text
    assert lines[0] == "def step_time(" and len(lines) <= program[program.index("def step_time(") :].count("\n") + 8
    assert last.startswith("More: -v (features, constants, ")


def test_explain_prints_terms_parts_steps_and_provenance(data: Path, capsys: Capsys) -> None:
    out = printed(capsys, "show", "-v", "--explain", "champion", "--experiments", data, "--id", "dense-chat")
    parts = "3.1 % faster than the table/Parts of the predicted E2E/dense-chat: terms/stage 2:/Constants/seed:kernels"
    for part in (*parts.split("/"), "Where the times of measured kernels come from"):
        assert part in out
    for once in ("\nConstants\n", "As dot products", "Fitted on (", "def step_time("):
        assert out.count(once) == 1
    assert "More: " not in out
    assert "--id nobody: no such experiment" in refused(capsys, "show", "--explain", "champion", "--id", "nobody")


def test_explain_json_has_the_steps_of_every_experiment(data: Path, tiny_run: Path, capsys: Capsys) -> None:
    best = f"{tiny_run}:{open_run(tiny_run).archive().members()[0].id}"
    for args in ("linear", "--experiments", data), (best,):
        found = as_json(capsys, "show", "--explain", *args)
        assert [e["id"] for e in found["experiments"]] == [*tiny_world.FITTED, "dense-overloaded"]
        for e in found["experiments"]:
            assert len(e["terms_pct"]) == len(found["terms"]) and np.isfinite(e["terms_pct"]).all()
    found = as_json(capsys, "show", "--diagnose", best, "--id", "dense-code")
    assert [e["experiment"] for e in found["experiments"]] == ["dense-code"]
