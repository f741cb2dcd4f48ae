"""Programs of the Python interface: times of steps by hand, equality, and how a notebook shows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import evolve

STEP = """
def step_time(b, s, *, each: us/request = 100.0, context: us/token = 0.5, prompt: us/token = 2.0):
    return each * b.decode_reqs + context * b.kv_decode_sum + prompt * b.prefill_tokens

def queueing_time(r, s, *, base: us = 7.0, token: us/token = 0.25):
    return base + token * r.input_len
"""
DEPLOYMENT = ("llama-2-7b", "H100", 1)


def test_step_times_are_those_by_hand() -> None:
    """100 us a decode, 0.5 us a token of its context, 2 us a token of a prefill."""
    program = evolve.Program(STEP)
    assert program.step_us([(1, 40), (1, 60), (512, 0)], DEPLOYMENT) == 2 * 100 + 0.5 * 100 + 2 * 512
    assert program.step_us({(1, 40): 3, (7, 100): 2}, DEPLOYMENT) == 3 * 100 + 0.5 * 120 + 2 * 14
    assert program.step_us([(1, 0)], DEPLOYMENT) == 2  # the first token of a prompt
    assert program.step_us([], DEPLOYMENT) == 0
    assert program.step_us([(np.int64(512), np.int32(0))], ("llama-2-7b", "H100", np.int64(1))) == 2 * 512  # of a frame
    assert program.queueing_us(100, DEPLOYMENT) == 7 + 25


def test_the_deployment_of_an_experiment_is_one() -> None:
    experiment = next(e for e in evolve.load_experiments() if e.id == "llama-2-7b-tp1-general")
    champion = evolve.Program("champion")
    assert champion.step_us([(1, 500)] * 8, experiment) == champion.step_us([(1, 500)] * 8, DEPLOYMENT)


@pytest.mark.parametrize(
    "batch, deployment, message",
    [
        ([(0, 5)], DEPLOYMENT, r"batch: \(0, 5\) \* 1: are no requests: give \(new tokens >= 1"),
        ({(1, 5): -1}, DEPLOYMENT, r"batch: \(1, 5\) \* -1: are no requests"),
        ({(1, 5): 2.5}, DEPLOYMENT, r"batch: \(1, 5\) \* 2.5: are no requests.*, all whole numbers"),
        ([5], DEPLOYMENT, r"batch: 5 \* 1: are no requests"),
        ([(1, 5)], ("llama-2-7b", "H100"), r"deployment: .*'H100'.*: give an experiment, or \(model, GPU, TP degree\)"),
        ([(1, 5)], "llama-2-7b", "deployment: llama-2-7b: give an experiment"),
        ([(1, 5)], ("llama-2-7", "H100", 1), "deployment: llama-2-7: is not a known model"),
        ([(1, 5)], ("llama-2-7b", "H1000", 1), "deployment: H1000: is not a known GPU"),
    ],
)
def test_wrong_batches_and_deployments_are_one_line(batch: object, deployment: object, message: str) -> None:
    with pytest.raises(evolve.InputError, match=message):
        evolve.Program(STEP).step_us(batch, deployment)  # type: ignore[arg-type]


def test_programs_of_the_same_form_are_equal(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STEP.replace("100.0", "5.0"))
    mine, same = evolve.Program(tmp_path / "mine.py"), evolve.Program(STEP)
    assert mine == same and hash(mine) == hash(same) and mine.text != same.text
    assert mine != evolve.Program("floor") and mine != "mine.py"
    assert repr(same) == "Program('text')"


def test_a_champion_of_a_run_is_the_program_that_the_command_line_names(tiny_run: Path) -> None:
    champion = evolve.load_run(tiny_run).champion
    assert champion and evolve.Program(champion.name).text == champion.text
    with pytest.raises(evolve.InputError, match="no such proposal"):
        evolve.load_run(tiny_run).program(99999)


def test_text_from_files_is_no_markup_in_a_notebook(tmp_path: Path) -> None:
    path = tmp_path / "<b>x\x1b[31m & y.py"
    path.write_text('"""<script>alert(1)</script>\u202e"""\n' + STEP)
    shown = evolve.Program(path)._repr_html_()
    assert "<script>" not in shown and "<b>" not in shown and "\x1b" not in shown and "\u202e" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown and r"&lt;b&gt;x\x1b[31m &amp; y.py" in shown
    assert shown.startswith("<pre>") and shown.endswith("</p>")
