"""The sampler of vLLM in launches and bytes, because no table has it.

The engine draws every token from the distribution that the model's generation_config shapes. The sampler runs outside
the captured graph, as plain PyTorch operations over requests x vocabulary logits in float32. Each is bound by memory,
and the bytes that each moves can be counted in the sources: vLLM 0.15 (vllm/v1/sample, model_executor/layers/utils.py)
and PyTorch 2.9 (aten/src/ATen/native/cuda/SortStable.cu).

That leaves two unknowns: the time of a launch, and the share of the bandwidth that such operations reach. 5 us and 0.5
reproduce the timings of the sorting part that vLLM's developers published within 12 %: 0.35 ms for 48 requests of
32,768 words, 0.39 for 56, 1.07 to 1.16 for 64 of 131,072 and 2.32 for 128 (vllm-project/vllm, pull requests 33538,
40376, 51507; on an H100 where they name the GPU; the last of them has 4.18 ms for 128).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.kernels.roofline import DATASHEET, KernelGpu, Timing
from simulator.model.architecture import Sampling

EAGER_LAUNCH_US = 5.0  # of an operation outside the graph, which the CPU launches on its own
BANDWIDTH = 0.5  # the share of the memory bandwidth that it reaches


@dataclass(frozen=True, slots=True)
class SamplerPart:
    """A part of the sampler: its launches, and the bytes that they read and write per logit."""

    name: str
    launches: int
    bytes: int


# Conversion to float32 (6 bytes), division by the temperature (8), softmax (12), exponential noise (4), division by it
# (12), argmax (4). In addition the rows are gathered, and the tokens converted and copied.
DRAW = SamplerPart("sampling: draw", 10, 46)
# Radix sort of all rows at once by value: indices (8), histogram (4), four passes over keys and indices (96); then by
# row, one pass (24), and writing the results (24). Softmax, cumulative sum, comparison, mask, scatter (58).
SORT = SamplerPart("sampling: sort", 24, 214)
# Occurrences in prompt and answer as two int64 counts and masks of the vocabulary (34); the repetition kernel (10);
# frequency and presence penalties, which are applied even if they are zero (41).
PENALTIES = SamplerPart("sampling: penalties", 16, 85)


def parts(sampling: Sampling) -> tuple[SamplerPart, ...]:
    """The parts that run, in the engine's order."""
    wanted = {PENALTIES: sampling.penalises, SORT: sampling.sorts, DRAW: True}
    return tuple(part for part, runs in wanted.items() if runs)


def sampler(gpu: KernelGpu, requests: np.ndarray, vocab: int, part: SamplerPart) -> Timing:
    """The time of a part of the sampler by requests. Every rank has the logits of the whole vocabulary."""
    moved = requests * vocab * part.bytes / gpu.bytes
    return Timing(part.launches * EAGER_LAUNCH_US + moved / BANDWIDTH, moved, DATASHEET, "torch")
