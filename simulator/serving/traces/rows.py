"""The requests of a trace's file in our columns, unchecked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

MOONCAKE_TOKENS = 512  # of a piece of a prompt


@dataclass(frozen=True)
class Rows:
    """The requests of a file in its order: columns of `formats.COLUMNS`, float64[requests], NaN for what a row does
    not have.

    `place(i)` names row i in messages. hashes: the numbers of each row's pieces, in a flat array, and where each row's
    begin; `hash_tokens` the tokens of a piece. `about`: what a reader of results must know. `model`: what served the
    requests, "" where the file does not say. `own`: whether it has our columns, which anybody may write.
    """

    columns: dict[str, np.ndarray]
    place: Callable[[int], str]
    hashes: tuple[np.ndarray, np.ndarray] | None = None
    hash_tokens: int = MOONCAKE_TOKENS
    about: tuple[str, ...] = field(default=())
    model: str = ""
    own: bool = False

    def __len__(self) -> int:
        return len(self.columns["input_len"])
