"""What messages suggest instead of a name that is not known."""

from __future__ import annotations

import pytest

from simulator.common.errors import OWN_MODEL, nearest_listed
from simulator.serving.gpu import hardware_table
from simulator.serving.model import model_table

MISSPELT = {
    "llamma-2-7b": "llama-2-7b",
    "llama2-7b": "llama-2-7b",
    "Llama-2-7": "llama-2-7b",
    "qwen/qwen3-14b": "Qwen/Qwen3-14B",
    "H100 SXM": "H100-SXM",
    "H100-SMX": "H100-SXM",
    "a100-80g": "A100-80",
}
OTHERS = (
    *("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct", "llama-3.1-9b", "meta-llama/Llama-3.1-405B-Instruct"),
    *("A100-PCIe-80GB", "A100-SXM-40GB", "L40", "H20", "GB100", "GH100", "H100-PCIe"),
)


def said(name: str) -> str:
    return nearest_listed(name, (*model_table(), *hardware_table()), OWN_MODEL)


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
def test_a_misspelt_name_gets_the_one_that_was_meant(name: str, meant: str) -> None:
    assert said(name) == f"did you mean '{meant}'? Or {OWN_MODEL}"


@pytest.mark.parametrize("name", OTHERS)
def test_a_name_with_another_number_or_part_is_of_another_model_or_gpu(name: str) -> None:
    assert said(name).startswith("the closest are ")
    assert said(name).endswith(f"; `evolve list` has all, or {OWN_MODEL}")
