"""Baselines: the host's roofline by hand, its program for each MFU, the host's trained-physics form, refitted and as
published, and the answers that a run keeps."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deployed import facts_of_terms
from host_form import ALPHA, BETA

from archive.score import Errors
from evaluator import baselines
from evolve.calibrate.fit import calibrate
from evolve.output.progress import Line
from evolve.run.program import load
from evolve.search.baselines import run_baselines
from evolve.search.pool.local import Here
from simulator.clock.bind import bind
from simulator.clock.fields import Active, raw_row
from simulator.language.complete import complete
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_latent_attention
from simulator.serving.gpu import Mfu
from simulator.serving.model import model_table

RUNS = {e.id: e for e in bundled_experiments()}
LLAMA = RUNS["llama-2-7b-tp1-codegen"]
MIXTRAL = RUNS["mixtral-8x7b-tp2-codegen"]
CLEAN = [e for e in RUNS.values() if e.quality == "clean"]


def step_us(experiment: Experiment, *batch: Active) -> float:
    """The host roofline's time of one step of these requests."""
    program = complete(parse(baselines.host_roofline(experiment.mfu)))
    return float(bind(assemble(program), program.theta, experiment.facts).step_us(raw_row(batch)))


# Llama-2-7B: 32 layers of 4 matrices of 4096^2 and 3 of 4096 x 11008 = 6,476,005,376 weights of 2 bytes
WEIGHTS = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
KV = 2 * 32 * 32 * 128 * 2  # bytes of a token: keys and values of 32 layers and 32 heads of width 128
PAIR = 4 * 32 * 128 * 32  # FLOPs of a pair of tokens: two products, 32 heads of width 128, 32 layers


def test_a_decode_step_is_bound_by_memory_by_hand() -> None:
    # one decode at 511 tokens: weights once, 511 tokens of KV read and 1 written, over 3.35 TB/s
    memory = (2 * WEIGHTS + 512 * KV) / 3.35e6  # 3,866.3 + 80.1 = 3,946.4 us
    assert memory == pytest.approx(3946.4, abs=0.1)
    # 2 FLOPs a weight and 512 pairs, over 989.5 TFLOP/s x 0.12: 109.1 + 2.3 us, less than memory
    compute = (2 * WEIGHTS + 512 * PAIR) / (989.5e6 * 0.12)
    assert compute == pytest.approx(111.3, abs=0.1)
    assert step_us(LLAMA, Active(16, 511, 1)) == pytest.approx(memory, rel=1e-12)


def test_a_mixed_step_adds_the_compute_of_both_phases_by_hand() -> None:
    # prefill of 1000 tokens from nothing: 1000 tokens through the weights, 1000 x 1001 / 2 pairs, at MFU 0.65
    prefill = (2 * WEIGHTS * 1000 + PAIR * 500_500) / (989.5e6 * 0.65)  # 20,137.6 + 408.0 = 20,545.6 us
    # 40 decodes at 599 tokens: 40 tokens through the weights, 40 x 600 pairs, at MFU 0.12
    decode = (2 * WEIGHTS * 40 + PAIR * 40 * 600) / (989.5e6 * 0.12)  # 4,363.1 + 106.0 = 4,469.1 us
    assert (prefill, decode) == pytest.approx((20_545.6, 4_469.1), abs=0.1)
    # bytes: weights once for both phases, KV of 40 x 599 tokens read and of 1040 written: 7,778.9 us, less than compute
    memory = (2 * WEIGHTS + (40 * 599 + 1040) * KV) / 3.35e6
    assert memory == pytest.approx(7_778.9, abs=0.1)
    batch = (Active(1000, 0, 1000), *[Active(16, 599, 1)] * 40)
    assert step_us(LLAMA, *batch) == pytest.approx(prefill + decode, rel=1e-12)
    # twice the MFU of decode halves its part
    fast = replace(LLAMA, mfu=Mfu(0.65, 0.24))
    assert step_us(fast, *batch) == pytest.approx(prefill + decode / 2, rel=1e-12)


def test_a_mixture_reads_the_experts_that_its_tokens_touch() -> None:
    # Mixtral on two GPUs: 32 layers of attention 4096 x (2 x 4096 + 2 x 1024) and 8 experts of 3 x 4096 x 14336, of
    # which one decode touches 2 (1 - (1 - 2/8)^1 = 1/4); 64 KiB of KV a token and GPU; half of it all a GPU
    weights = 32 * (4096 * (2 * 4096 + 2 * 1024) + 2 * 3 * 4096 * 14336)
    assert step_us(MIXTRAL, Active(16, 511, 1)) == pytest.approx((weights * 2 / 2 + 512 * 2**16) / 3.35e6, rel=1e-12)


def test_every_gpu_has_the_program_of_its_mfu() -> None:
    other = replace(MIXTRAL, mfu=Mfu(0.4, 0.3))
    tasks = [t for t in baselines.tasks([LLAMA], [LLAMA, other]) if t.name == baselines.HOST_ROOFLINE]
    assert [(t.fitted, t.predicted) for t in tasks] == [((), (LLAMA,)), ((), (other,))]
    assert [baselines.program_of(t).theta for t in tasks] == [(0.65, 0.12, 2.0), (0.4, 0.3, 2.0)]
    rows = [row for t in tasks for row in baselines.solve(t, seeds=(1,))]
    assert [row.experiment for row in rows] == [LLAMA.id, other.id]
    assert all(row.e2e is not None and -60 < row.e2e < 0 for row in rows)  # no overheads: too fast
    assert baselines.HOST_ROOFLINE in baselines.NAMES


def task_of(name: str, fitted: Sequence[Experiment], predicted: Sequence[Experiment]) -> baselines.BaselineTask:
    (task,) = (t for t in baselines.tasks(fitted, predicted) if t.name == name)
    return task


def mean_abs_pct(rows: Sequence[Errors], metric: str) -> float:
    return sum(abs(getattr(row, metric)) for row in rows) / len(rows)


def latent(experiment: Experiment) -> Experiment:
    """The same experiment of a model with latent attention."""
    config = model_table()[experiment.model]["config"] | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    facts = facts_of_terms(config, "H100", experiment.engine)
    return replace(experiment, id="latent", facts=facts)


@pytest.mark.slow
def test_the_hosts_default_form_is_refitted_as_evolve_fit_does() -> None:
    task = task_of(baselines.TRAINED_PHYSICS, CLEAN, CLEAN)
    refitted = calibrate(load("trained_physics"), CLEAN, None).best
    assert baselines.program_of(task).theta == refitted.fit.programs[0].theta
    rows = baselines.solve(task)
    assert len(rows) == 20 and tuple(rows) == refitted.errors
    errors = [round(mean_abs_pct(rows, metric), 1) for metric in ("e2e", "ttft", "itl")]
    assert errors == [5.0, 18.6, 4.9]  # docs/results.md


def test_undecided_coefficients_stay_as_published() -> None:
    """A dense model on one GPU has no all-reduce and no layers with experts between dense ones."""
    fitted = {
        c.name: c.value
        for f in baselines.program_of(task_of(baselines.TRAINED_PHYSICS, [LLAMA], [LLAMA])).functions
        for c in f.constants
    }
    assert (fitted["b4"], fitted["b8"]) == pytest.approx((BETA[3], BETA[7]), rel=1e-6)  # a fit keeps six digits
    assert abs(fitted["b3"] / BETA[2] - 1) > 0.01


def test_the_published_form_has_the_hosts_coefficients_and_fits_nothing() -> None:
    task = task_of(baselines.TRAINED_PHYSICS_PUBLISHED, CLEAN, CLEAN)
    alpha_0, alpha_1, alpha_2 = ALPHA
    assert sorted(baselines.program_of(task).theta) == sorted((*BETA[:10], alpha_0, alpha_1, alpha_2))
    rows = baselines.solve(task)
    assert mean_abs_pct(rows, "e2e") == pytest.approx(122.9, abs=0.05)  # `evolve score trained_physics`, docs/emit.md
    others = [row for row in rows if "llama-2-7b" not in row.experiment]  # one of whose runs saturates
    assert (len(others), mean_abs_pct(others, "e2e")) == (16, pytest.approx(10.8, abs=0.05))


def test_the_hosts_form_does_not_count_latent_attention(tmp_path: Path) -> None:
    other = latent(MIXTRAL)
    assert has_latent_attention(pickle.loads(pickle.dumps(other.facts))) and not has_latent_attention(MIXTRAL.facts)
    refitted = task_of(baselines.TRAINED_PHYSICS, [LLAMA, other], [LLAMA, other])
    assert (refitted.fitted, refitted.predicted) == ((LLAMA,), (LLAMA,))
    assert task_of(baselines.TRAINED_PHYSICS_PUBLISHED, [LLAMA, other], [LLAMA, other]).predicted == (LLAMA,)
    assert task_of("blackbox", [LLAMA, other], [LLAMA, other]).predicted == (LLAMA, other)
    run: Any = SimpleNamespace(path=tmp_path)
    answers = run_baselines(run, [other], [], Here(Line(quiet=True)))  # nothing that it could be fitted to
    assert tuple(answers) == baselines.NAMES
    assert not answers[baselines.TRAINED_PHYSICS] and not answers[baselines.TRAINED_PHYSICS_PUBLISHED]
    assert [row.experiment for row in answers["blackbox"]] == ["latent"]


def test_kept_answers_are_used_unless_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(path=tmp_path)
    pool = Here(Line(quiet=True))
    answers = run_baselines(run, [LLAMA], [], pool)
    assert tuple(answers) == baselines.NAMES
    kept = tmp_path / "baseline_errors.json"
    whole = json.loads(kept.read_text())
    whole["answers"]["roofline"][0][1] = 77.0
    kept.write_text(json.dumps(whole))
    assert run_baselines(run, [LLAMA], [], pool)["roofline"][0].e2e == 77.0
    del whole["answers"][baselines.HOST_ROOFLINE]  # as an earlier release left it
    kept.write_text(json.dumps(whole))
    assert run_baselines(run, [LLAMA], [], pool) == answers
    double = baselines.BASELINES["roofline"].program.replace("return max(", "return 2 * max(")
    monkeypatch.setitem(baselines.BASELINES, "roofline", replace(baselines.BASELINES["roofline"], program=double))
    assert run_baselines(run, [LLAMA], [], pool)["roofline"] != answers["roofline"]
