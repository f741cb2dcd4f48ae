"""The protocol: the numbers of the shipped file, its digest, and what a damaged one says."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import baselines
from evolve.output.table import PASS_PCT
from research.methods.protocol import HELD_OUT, ShortCircuit, protocol, read_protocol
from simulator.common.documents import parse_yaml
from simulator.common.errors import InputError

TEXT = b"""
splits: {train: 0.6, valid: 0.2, test: 0.2}
h1: {alpha: 0.05, points: 2.0, strengths: [0.1, 1.0]}
h2: {e2e: 10.0, ttft: 15.0, itl: 15.0}
h3: {e2e: 10.0, kinds: [models]}
short_circuit: {mape: 30.0, reference: blackbox, points: 10.0}
bootstrap: {seed: 0}
"""


def read(text: bytes) -> Any:
    return read_protocol(parse_yaml(text, "own.yaml", ""), "own.yaml")


def test_the_numbers_of_the_shipped_protocol() -> None:
    p = protocol()
    assert p.splits == {"train": 0.6, "valid": 0.2, "test": 0.2}
    assert (p.h1.alpha, p.h1.points) == (0.05, 2.0)
    assert (p.h2.e2e, p.h2.ttft, p.h2.itl) == (10.0, 15.0, 15.0) == tuple(PASS_PCT.values())
    assert p.h3.kinds == HELD_OUT
    assert (p.short_circuit.mape, p.short_circuit.points) == (30.0, 10.0)
    assert p.short_circuit.reference in baselines.NAMES


def test_the_digest_changes_with_a_value_and_not_with_a_comment() -> None:
    digest = read(TEXT).digest
    assert read(b"# why\n" + TEXT).digest == digest
    assert read(TEXT.replace(b"seed: 0", b"seed: 1")).digest != digest
    assert read(TEXT.replace(b"points: 2.0", b"points: 2.5")).digest != digest


# part of the file, what is in its place, and the key that the error names
DAMAGES = """
train: 0.6 ~ train: 0.5 ~ splits.train must be 0.6
kinds: [models] ~ kinds: [gpus] ~ h3.kinds must be of models, workloads, architectures, hardware
[0.1, 1.0] ~ [0.1, 0] ~ h1.strengths must be numbers above 0, got 0
[0.1, 1.0] ~ 0.1 ~ h1.strengths must be a list
alpha: 0.05 ~ alpha: 5 ~ h1.alpha must be <= 1
bootstrap: ~ boots: ~ boots is not a known key
"""


@pytest.mark.parametrize("damage", DAMAGES.strip().split("\n"))
def test_a_damaged_file_is_one_line(damage: str) -> None:
    old, new, message = damage.split(" ~ ")
    with pytest.raises(InputError) as caught:
        read(TEXT.replace(old.encode(), new.encode()))
    assert str(caught.value).startswith(f"own.yaml: {message}") and "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"own\.yaml: must hold a mapping"):
        read(b"- 1\n")


@pytest.mark.parametrize(("reference", "limit"), [(None, 30.0), (15.0, 30.0), (25.0, 35.0)])
def test_the_short_circuit_is_the_larger_of_both_limits(reference: float | None, limit: float) -> None:
    assert ShortCircuit(30.0, "blackbox", 10.0).limit(reference) == limit
