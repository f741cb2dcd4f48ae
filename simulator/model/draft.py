"""What drafts tokens for speculative decoding: layers that run after the model's own, or another model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.model.architecture import Architecture
from simulator.model.formats import IN_16
from simulator.model.omissions import MTP
from simulator.model.terms import flat_config

NGRAM, EAGLE, EAGLE3, OWN_LAYERS, DRAFT_MODEL = "ngram", "eagle", "eagle3", "mtp", "draft_model"
METHODS = (NGRAM, EAGLE, EAGLE3, OWN_LAYERS, DRAFT_MODEL)
"""vLLM's names (vllm/config/speculative.py)."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft of a step: `tokens` for each decode, by as many passes.

    architecture: the layers of a pass; None where the host looks tokens up. joined: hidden states that a pass joins to
    one. modules: copies of the layers in memory, each with a KV cache. tables: matrices of hidden x vocabulary that are
    its own, and not the target's.
    """

    tokens: int
    architecture: Architecture | None = None
    joined: int = 0
    modules: int = 1
    tables: int = 0

    @property
    def width(self) -> int:
        """The positions of a decode that the model verifies: its drafts, and the token before them."""
        return 1 + self.tokens


def draft_of(method: str, tokens: int, target: Architecture, modules: int) -> Draft:
    """The draft by a method other than DRAFT_MODEL. modules: layers of the checkpoint that predict further tokens.

    An EAGLE head (arXiv:2401.15077, 2503.01840) is a layer of the target's attention and a dense feed-forward block in
    16 bits, as wide as what a token uses of the target. EAGLE-3 joins three hidden states, and has an output matrix of
    its own, which is counted over the whole vocabulary.
    """
    main = replace(target.main, layers=1)
    one = replace(target, layers=1, attention=(main,), recurrent=(), dense_layers=1, moe_layers=0)
    if method == NGRAM:
        return Draft(tokens)
    if method == OWN_LAYERS:
        if target.moe_layers:
            one = replace(one, dense_layers=0, moe_layers=1)
        return Draft(tokens, one, joined=2, modules=modules)
    width = target.ffn if target.dense_layers else target.active * target.moe_ffn + target.shared_ffn
    one = replace(one, ffn=width, experts=0, active=0, moe_ffn=0, shared_ffn=0, expert_hidden=0, formats=IN_16)
    return Draft(tokens, one, *((3, 1, 1) if method == EAGLE3 else (2, 1, 0)))


def draft_by(model: Architecture, tokens: int) -> Draft:
    """The draft by a whole model, which has its own embeddings and output matrix."""
    return Draft(tokens, model, tables=1 if model.tied else 2)


def own_layers(config: Mapping[str, Any]) -> int:
    """The layers of a checkpoint that predict further tokens, by its config.json."""
    terms = flat_config(config)
    return next((value for key in MTP if isinstance(value := terms.get(key), int) and value > 0), 0)
