"""The batch of a step estimated from its summary alone, where no request journeys give it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.clock.fields import Active
from simulator.serving.experiment import Experiment
from simulator.serving.workload import Profile, distinct_prompts, output_lengths, prompt_lengths

ASSUMED = (
    "Batches from summaries are estimates. KV lengths come from the blocks in use: half a block a request is left "
    "empty, shared prefixes count for every request. Progress is spread evenly over the answer around the mean. Every "
    "prompt has the mean length, and its prefill is a first chunk. Under async scheduling one-token prefills are first "
    "decodes, and of other prefill requests half."
)


@dataclass(frozen=True, slots=True)
class Summary:
    """A step's summary: requests and tokens scheduled, requests in the running list, KV blocks in use."""

    prefill_reqs: int
    decode_reqs: int
    prefill_tokens: int
    decode_tokens: int
    running: int
    blocks: int


def estimate(summary: Summary, experiment: Experiment, asynchronous: bool) -> tuple[list[Active], bool]:
    """The requests of the step, and whether their mean KV length had to be moved into what the workload allows.

    All assumptions:

    * Every prompt is as long as the workload's mean, I. KV tokens of the running requests: blocks in use times block
      size, less half a block per request, plus the tokens that sharing hides. With prefix caching these are the whole
      blocks of a system prompt for all requests but one per group. If more requests run than there are distinct
      prompts, so are the whole blocks of the surplus requests' prompts. (By this rule two real runs of 70B have 700 and
      721 tokens per request, without sharing 626 and 662. A prompt and half an answer are 699 and 715.)
    * A request that is prefilled or decodes for the first time holds its prompt. The decodes hold the rest: progress PI
      is spread evenly around their mean over the answer as far as there is room, as in
      `evaluator.diagnose.stage_steps`.
    * A prefill is a first chunk: PI = 0, which is also the host's view after a prefix hit, NN its tokens.
    * Async scheduling counts the first decode of a request as a prefill of 1 token. With as many prefill tokens as
      prefill requests, all are first decodes. Otherwise half of them are, rounded down, because each request appears
      once in either role; the others share the remaining tokens evenly.
    * More decode tokens than decode requests are one preempted request that computes its lost tokens again: a prefill
      of the excess and its next token.
    """
    w, block = experiment.workload, experiment.engine.block_size
    prompt = float(prompt_lengths(w).mean())
    length, span = round(prompt), max(round(float(output_lengths(w).mean())) - 2, 0)
    p, tokens = summary.prefill_reqs, summary.prefill_tokens
    firsts = 0 if not asynchronous else p if tokens <= p else p // 2
    prefills = p - firsts
    batch = [Active(length, length, 1) for _ in range(firsts)]
    left = max(tokens - firsts, prefills)
    chunks = [left // prefills + (i < left % prefills) for i in range(prefills)] if prefills else []
    excess = summary.decode_tokens - summary.decode_reqs
    later = summary.decode_reqs
    if excess > 0 and later:
        chunks.append(excess + 1)
        later -= 1
    batch += [Active(max(length, new), 0, new) for new in chunks]
    if not later:
        return batch, False
    running = max(summary.running, p + summary.decode_reqs)
    held = summary.blocks * block - running * block / 2.0 + _hidden(running, experiment, prompt)
    others = len(batch) * prompt
    mean = (held - others) / (running - len(batch))
    inside = min(max(mean, length), length + span)
    half = min(span / 2.0, inside - length, length + span - inside)
    batch += [Active(length, round(inside + 2.0 * half * (i / (later + 1) - 0.5)), 1) for i in range(1, later + 1)]
    return batch, inside != mean


def _hidden(running: int, experiment: Experiment, prompt: float) -> float:
    """KV tokens of the running requests that are in blocks counted for another one of them."""
    w, block, load = experiment.workload, experiment.engine.block_size, experiment.workload.source
    if not isinstance(load, Profile) or not load.groups or not experiment.engine.prefix_caching:
        return 0.0
    system = load.system_prompt_len // block * block
    prompts = distinct_prompts(w)
    surplus = max(running - prompts, 0) if prompts else 0
    whole = math.floor(prompt) // block * block
    return float(system * (running - min(load.groups, running)) + (whole - system) * surplus)
