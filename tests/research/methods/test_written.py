"""The trainings of the original exercise as they were written: their features by hand, and what they recover."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from evaluator.fit.fit import fit_set
from evaluator.fit.problem import limits
from evolve.run.program import method_text
from research.methods import train as training
from research.methods.recipe import mean_error
from research.methods.samples import Sample
from research.methods.train import Training
from research.methods.written import FOR_ALL, Design, _tamed, design, form_with, train_hamm
from simulator.clock.bind import bind
from simulator.clock.fields import Active, raw_row
from simulator.common.streams import stream
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.splits import TRAIN

SHIPPED = {e.id: e for e in bundled_experiments()}
MIXTRAL = "mixtral-8x7b-tp2-general"
RUNS = ("llama-2-7b-tp1-general", "llama-2-70b-tp4-general", "codellama-34b-tp2-general", MIXTRAL)
RUNS += ("20-llama-4-scout-17b-16e-tp2-codegen-2",)
MODELS = {name: SHIPPED[name].model for name in RUNS}
COUNT = 300
# 128 tokens of a prompt of 512 after 256, and two decodes with 300 and 600 tokens of context.
BATCH = [Active(512, 256, 128), Active(200, 300, 1), Active(512, 600, 1)]

# Mixtral 8x7B on two H100, from its config.json (32 layers, width 4096, 32 heads and 8 KV heads of 128, 8 experts of
# 14336, two a token, vocabulary 32000) and the datasheet (989.5 TFLOP/s, 3.35 TB/s, 450 GB/s), a rank each, in us.
F, B = 989.5e6, 3.35e6
ATTENTION, EXPERT = 2 * 4096 * 4096 + 2 * 4096 * 1024, 3 * 4096 * 14336  # weights of a layer, of an expert
TOKEN_US = 2 * 32 * (ATTENTION + 2 * EXPERT) / 2 / F
KV_US = 2 * 32 * 4 * 128 * 2 / B  # two vectors a layer, four heads a rank, two bytes
PAIR_US = 4 * 16 * 128 * 32 / F
PREFILL_PAIRS, CONTEXT = 128 * 256 + 128 * 129 / 2, 256 + 300 + 600
TOUCHED = 1 - (1 - 2 / 8) ** 130
WEIGHTS_US = (32 * ATTENTION + 32 * 8 * EXPERT * TOUCHED + 32000 * 4096) * 2 / 2 / B
LINK_US = 130 * 2 * 32 * 4096 * 2 * 2 * (1 / 2) / 450e3  # two ring all-reduces a layer of 16 bits
ROUTER_US = 2 * 130 * 4096 * 8 / F  # of a layer
EXPERTS_US = 2 * 130 * 2 * EXPERT / 2 / F  # of a layer
HEAD_FLOPS = 2 * 4096 * 32000 / 2 * 3
ROOFLINE_US = max(
    130 * TOKEN_US + PAIR_US * (PREFILL_PAIRS + 902) + HEAD_FLOPS / F,
    WEIGHTS_US + KV_US * (CONTEXT + 130) + 8 * 32000 * 3 / B,
)
CACHE = SHIPPED[MIXTRAL].facts["kv_blocks"] * 16  # tokens
BY_HAND = {
    # 1 us of w0, w7 to w11 is 1 us; the longest sequence is 600 of 4096
    "nrrl": {
        **{"w0": 1.0, "w1": 128 * TOKEN_US / 1e3, "w2": 2 * TOKEN_US / 1e3},
        **{"w3": PAIR_US * (PREFILL_PAIRS + 902) / 1e3, "w4": KV_US * CONTEXT / 1e3, "w5": KV_US * 130 / 1e3},
        **{"w6": WEIGHTS_US / 1e3, "w7": 1 / 3, "w8": 600 / 4096, "w9": 2 / 8},
        **{"w10": math.sqrt((8 - 2) / (2 * 130)), "w11": LINK_US / ROOFLINE_US},
    },
    "lacm": {
        **{"b0": 1.0, "b1": math.log(129) * TOKEN_US / 1e3, "b2": math.log(3) * TOKEN_US / 1e3},
        **{"b3": math.log1p(CONTEXT / 16) * 16 * KV_US / 1e3, "b4": math.log(4), "b5": LINK_US / 1e3},
        **{"b6": math.log(131) * 2 * 32 * 4096 * 8 / F / 1e3, "b7": 1 + (8 - 2) / (8 * 2)},
    },
    "hamm": {
        **{"g0": 1.0, "g1": LINK_US / 1e3, "b0": 1.0, "b1": math.log(129) * TOKEN_US / 1e3},
        **{"b2": math.sqrt(128 / 1024), "b3": math.log(3) * KV_US * CONTEXT / 1e3, "b4": math.log(4)},
        **{"b5": CONTEXT / CACHE, "b6": math.log(131), "correction": 1.0},
    },
    "jams": {
        **{"g0": 1.0, "g1": LINK_US / 1e3, "b0": 1.0, "b1": 128 * TOKEN_US / 1e3, "b2": 2 * TOKEN_US / 1e3},
        "g2": 32 * (ROUTER_US + 5 * 3 + (1 + math.sqrt(6 / 16)) * EXPERTS_US) / 1e3,
        **{"b3": KV_US * CONTEXT / 1e3, "b4": 3.0, "b5": math.log(601), "b6": 128 * 2 / 2048**2, "b7": 0.0},
    },
    "srfa": {
        **{"g0": 1.0, "g1": LINK_US / 1e3, "g2": 32 * 5 / 1e3, "g3": 32.0, "imbalance": 32 * (ROUTER_US + 15) / 1e3},
        **{
            "b0": 1.0,
            "b1": (128 * TOKEN_US + PAIR_US * PREFILL_PAIRS) / 1e3,
            "b2": (2 * TOKEN_US + PAIR_US * 902) / 1e3,
        },
        **{"b3": KV_US * CONTEXT / 1e3, "b4": math.log(4), "b5": math.log(601), "b6": 1 / 3 * 2 / 3},
    },
}
LINKS = {"nrrl": "identity", "lacm": "exp", "hamm": "exp", "jams": "identity", "srfa": "softplus"}
CHANGED = "srfa_recommended"


def form(name: str, **values: float) -> Program:
    """A method's program, some constants of its step time at these values."""
    program = complete(parse(method_text(name if name == CHANGED else f"{name}_as_written")))
    constants = [c for f in program.functions for c in f.constants]
    return program.with_theta(tuple(values.get(c.name, c.value) for c in constants))


def value(program: Program, name: str) -> float:
    return dict(zip((c.name for f in program.functions for c in f.constants), program.theta, strict=True))[name]


def sample(name: str, batches: list[list[Active]], us: Callable[[Sample], np.ndarray]) -> Sample:
    n = len(batches)
    raw, each, ones = np.array([raw_row(batch) for batch in batches], dtype=float), np.arange(n), np.ones(n)
    e = SHIPPED[name]
    made = Sample(e.id, e.facts, raw, each, ones, ones, ones.copy(), np.full(n, TRAIN), 100 + each)
    return replace(made, observed_us=us(made))


def samples(truth: Program) -> list[Sample]:
    """Steps of five models, timed by `truth`; half of them have a prompt."""
    made = []
    for number, name in enumerate(RUNS):
        rng, batches = stream(number, 11), []
        for _ in range(COUNT):
            contexts = rng.integers(50, 3000, rng.integers(1, 80)).tolist()
            batch = [Active(20, context, 1) for context in contexts]
            if rng.random() < 0.5:
                batch.append(Active(4000, int(rng.integers(0, 1500)), int(rng.integers(16, 1500))))
            batches.append(batch)
        made.append(sample(name, batches, lambda s: timed_by(truth, s)))
    return made


def timed_by(program: Program, s: Sample) -> np.ndarray:
    return bind(assemble(program), program.theta, s.facts).steps_us(s.raw)


def of_batch(name: str) -> Design:
    return design(form_with(form(name), LINKS[name]), [sample(MIXTRAL, [BATCH], lambda s: np.ones(1))])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BY_HAND)
def test_features_of_a_batch_by_hand(name: str) -> None:
    made = of_batch(name)
    assert dict(zip(made.form.names, made.x[0], strict=True)) == pytest.approx(BY_HAND[name], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", BY_HAND)
def test_predictions_and_slopes_are_those_of_the_program(name: str) -> None:
    program = form(name, b0=50.0) if name == "srfa" else form(name)
    made = design(form_with(program, LINKS[name]), [sample(MIXTRAL, [BATCH, BATCH[1:]], lambda s: np.ones(2))])  # type: ignore[arg-type]
    at = made.form.start
    ms, slopes = made.predicted_ms(at)
    few = sample(MIXTRAL, [BATCH, BATCH[1:]], lambda s: np.ones(2))
    assert ms == pytest.approx(timed_by(program, few) / 1e3, rel=1e-6)
    for j, move in enumerate(np.eye(len(at)) * 1e-5):
        difference = (made.predicted_ms(at + move)[0] - made.predicted_ms(at - move)[0]) / 2e-5
        assert slopes[:, j] == pytest.approx(difference, rel=1e-4, abs=1e-5)


def test_nrrl_recovers_what_made_the_times() -> None:
    truth = {"w0": 2500.0, "w1": 1.4, "w3": 2.0, "w6": 1.2, "w7": 300.0, "w9": 1500.0, "w10": 800.0, "w11": 900.0}
    made = samples(form("nrrl", **truth))
    assert mean_error(FOR_ALL["nrrl written"](form("nrrl"), made), made) < 0.002


def test_lacm_recovers_what_made_the_times() -> None:
    truth = form("lacm", b0=8.6, b1=3.0, b2=8.0, b3=20.0, b4=0.15, b5=0.01, b6=2000.0, b7=0.3)
    found = FOR_ALL["lacm written"](form("lacm"), samples(truth))
    assert found.theta[:8] == pytest.approx(truth.theta[:8], rel=1e-3)


def test_no_constant_of_lacm_is_below_0() -> None:
    """Times that fall with the batch have the exponent 0 of it, not a negative one."""
    made = [replace(s, observed_us=1e4 / (1 + s.raw.sum(axis=1) / 1e4)) for s in samples(form("lacm"))]
    found = FOR_ALL["lacm written"](form("lacm"), made)
    assert min(found.theta) >= 0.0 and value(found, "b4") == 0.0


def test_hamm_recovers_each_correction_and_gives_unseen_models_their_mean() -> None:
    truth = form("hamm", g0=2000.0, g1=1.0, b0=8.0, b1=20.0, b2=0.5, b3=0.02, b4=0.2, b5=0.3, b6=0.05)
    corrections = dict(zip(RUNS[3:], (0.3, 0.7), strict=True))
    times = samples(truth)
    for i, name in enumerate(RUNS[3:], 3):
        made_by = form("hamm", **{**named(truth), "correction": corrections[name]})
        times[i] = replace(times[i], observed_us=timed_by(made_by, times[i]))
    found = train_hamm(form("hamm"), times, MODELS)
    assert set(found) == {"", *(MODELS[name] for name in RUNS[3:])}
    seen = [value(found[MODELS[name]], "correction") for name in RUNS[3:]]
    assert seen == pytest.approx([0.3, 0.7], abs=0.1)
    assert value(found[""], "correction") == pytest.approx(np.mean(seen), rel=1e-4)
    assert value(found[""], "g1") == pytest.approx(1.0, abs=0.1)
    for s in times:
        assert mean_error(found.get(MODELS[s.experiment], found[""]), [s]) < 0.03


def named(program: Program) -> dict[str, float]:
    return dict(zip((c.name for f in program.functions for c in f.constants), program.theta, strict=True))


def test_jams_recovers_what_made_the_times() -> None:
    made = samples(form("jams", g0=2000.0, g1=1.5, g2=1.4, b1=1.3, b2=1.5, b3=1.2, b4=20.0, b5=50.0, b6=4000.0))
    found = FOR_ALL["jams written"](form("jams"), made)
    assert mean_error(found, made) < 0.02
    assert [value(found, name) for name in ("g1", "g2", "b1")] == pytest.approx([1.5, 1.4, 1.3], rel=0.05)


SRFA_TRUE = {"g0": 0.0, "g1": 1.2, "g2": 0.0, "g3": 100.0, "b1": 1.3, "b2": 1.5, "b3": 1.4, "b4": 100.0}


CASES = [("srfa written", 2.0, 2.0), ("srfa changed", 2.0, 2.0), ("srfa written", 0.5, 0.5), ("srfa changed", 0.5, 1.0)]


@pytest.mark.parametrize(("method", "true", "found"), CASES)
def test_srfa_recovers_the_imbalance_which_its_reviewers_keep_at_1(method: str, true: float, found: float) -> None:
    """The first 100 steps of a session are wrong, and must not matter."""
    made = [s.where(np.arange(COUNT) % 3 == 0) for s in samples(form("srfa", **SRFA_TRUE, imbalance=true))]
    spoilt = [
        replace(s, step=np.arange(100) * 3, observed_us=s.observed_us * np.where(np.arange(100) < 34, 9.0, 1.0))
        for s in made
    ]
    trained = FOR_ALL[method](form(CHANGED if method == "srfa changed" else "srfa"), spoilt)
    assert mean_error(trained, made[:3]) < 0.05
    assert value(trained, "imbalance") == pytest.approx(found, abs=0.4)  # the fit of dense models is 1 % off
    assert found != 1.0 or value(trained, "imbalance") == 1.0


def test_srfa_takes_no_time_longer_than_the_99th_percentile() -> None:
    (made, *_) = samples(form("srfa"))
    long = replace(made, observed_us=np.arange(1.0, COUNT + 1), step=np.arange(COUNT))
    assert _tamed(long).observed_us.tolist()[-3:] == pytest.approx([298.0, 298.01, 298.01])
    assert _tamed(long).step[0] == 100


@pytest.mark.parametrize("method", ["jams written", "srfa written", "srfa changed"])
def test_constants_stay_within_their_bounds(method: str) -> None:
    """Where times fall with the all-reduce and with experts, g is 0 and no less."""
    start = form(CHANGED if method == "srfa changed" else method.split()[0])
    made = [s.where(np.arange(COUNT) % 6 == 0) for s in samples(form("nrrl"))]
    found = FOR_ALL[method](start, [replace(s, observed_us=3e4 / s.facts["tp"] + s.raw[:, 1]) for s in made])
    low, high = limits(found)
    assert (np.array(found.theta) >= low).all() and (np.array(found.theta) <= high).all()
    assert value(found, "g1") == 0.0


def test_a_deployment_that_srfa_misses_has_the_blackbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two deployments with times, the program is right about one; a third one has no times."""
    program, blackbox = form(CHANGED), form("nrrl")
    names = [RUNS[0], RUNS[1]]
    made = [s.where(np.arange(COUNT) < 5) for s in samples(program)[:2]]
    made[1] = replace(made[1], observed_us=1.2 * made[1].observed_us)
    fitted = list[tuple[str, ...]]()

    def fit(_: Program, data: training.FitSet) -> Program:
        fitted.append(tuple(e.id for e in data.experiments))
        return blackbox

    monkeypatch.setattr(training, "_fitted", fit)
    given = Training(fit_set([SHIPPED[name] for name in names]), tuple(made), ())
    alike = SHIPPED["llama-2-70b-tp4-codegen"]
    predicted = [SHIPPED[name] for name in (*names, MIXTRAL)] + [alike]
    assert training._fallbacks(program, given, made, predicted) == {names[1]: blackbox, alike.id: blackbox}
    assert fitted == [(names[1],)]
