"""Direct calibration: the four numbers that made a load stage's means come back from them."""

from __future__ import annotations

import pytest

from evolve.run.program import method_text
from research.methods.closed_form import Means, direct, published_means, true_means
from simulator.language.parse import parse
from simulator.serving.bundled import BUNDLED, bundled_experiments, bundled_file

FORM = parse(method_text("direct"))
ALPHA0, ALPHA1, BETA0, BETA1 = 9000.0, 2.0, 6000.0, 50.0  # us, us/token, us, us/request


def stage(rate: float, prompt: float, model: str = "m") -> Means:
    """The means of a stage that these four numbers make: n = rate * decodes * (beta0 + beta1 * n) requests decode."""
    decodes = 200.0
    n = rate * decodes * BETA0 / (1e6 - rate * decodes * BETA1)
    itl_us = BETA0 + BETA1 * n
    ttft_us = ALPHA0 + ALPHA1 * prompt + itl_us
    return Means("run", model, rate, prompt, decodes, ttft_us / 1e3, (ttft_us + decodes * itl_us) / 1e3, itl_us / 1e3)


def test_the_numbers_that_made_the_means_come_back() -> None:
    programs = direct(FORM, [stage(5, 300), stage(10, 300), stage(5, 900), stage(8, 600, "other")])
    assert programs["m"].theta == pytest.approx((BETA0, BETA1, ALPHA0, ALPHA1), rel=1e-4)
    # One stage determines no slopes: the lines are level.
    (itl_us, slope, wait_us, per_token) = programs["other"].theta
    assert slope == per_token == 0.0
    assert itl_us == pytest.approx(stage(8, 600).itl_ms * 1e3, rel=1e-4)
    assert wait_us == pytest.approx(ALPHA0 + ALPHA1 * 600, rel=1e-3)


def test_true_means_have_the_lengths_that_were_generated() -> None:
    """configs/experiments_h100.yaml, llama-2-7b codegen, first stage: 247 tokens, E2E 1810.322 and TTFT 25.037 ms."""
    first = next(m for m in true_means(bundled_experiments()) if m.experiment == "llama-2-7b-tp1-codegen")
    assert (first.decodes, first.rate) == (246.0, 5.0)
    assert first.itl_ms == pytest.approx((1810.322 - 25.037) / 246)


def test_published_means_are_what_the_load_generator_reported() -> None:
    """The same stage: 193.715 re-tokenised tokens, an ITL of 3.6027 ms; the second file has no such figures."""
    means = published_means(bundled_experiments())
    first = next(m for m in means if m.experiment == "llama-2-7b-tp1-codegen")
    assert (first.decodes, first.itl_ms) == (192.715, 3.6027)
    further = {e.id for e in bundled_file(BUNDLED[1])}
    assert not further & {m.experiment for m in means}
