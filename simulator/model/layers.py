"""The kinds of layers of a model: what each projects, caches, and keeps of every request."""

from __future__ import annotations

from dataclasses import dataclass

ROWS, COLUMNS, WHOLE = "rows", "columns", "whole"  # how tensor parallelism splits a matrix: its output, its input, not


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer of the whole model, from width `k` to width `n`; `split` says which of them GPUs share."""

    name: str
    n: int
    k: int
    split: str = ROWS

    def on(self, gpus: int) -> tuple[int, int]:
        """(n, k) on one of so many GPUs."""
        n = self.n // gpus if self.split == ROWS else self.n
        k = self.k // gpus if self.split == COLUMNS else self.k
        return max(n, 1), max(k, 1)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): widths of its projections.

    `query_rank` is 0 without a compressed query. `topk`: tokens that sparse attention keeps, 0 for all;
    `index_heads`, `index_dim`: of its indexer, 0 in layers that take their tokens from an earlier layer's indexer.
    """

    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int = 0
    topk: int = 0
    index_heads: int = 0
    index_dim: int = 0


@dataclass(frozen=True, slots=True)
class Attention:
    """Layers with softmax attention that are alike.

    `head_dim` is the width of a query head, `value_dim` of a value head. `window`: tokens that a token attends to, 0
    for all; `chunked`: chunks of that size instead of a sliding window. `gated`: the output is multiplied by a gate of
    its own width. `normed`: queries and keys have a norm across all heads, for which GPUs exchange its sums.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    chunked: bool = False
    gated: bool = False
    latent: Latent | None = None
    normed: bool = False

    def kv_on(self, gpus: int) -> int:
        """KV heads on one of so many GPUs: more GPUs than heads hold copies."""
        return max(self.kv_heads // gpus, 1)

    def cached(self, gpus: int) -> float:
        """Scalars that one of so many GPUs caches of a token in a layer; of a latent vector every GPU has all."""
        if self.latent:
            return float(self.latent.rank + self.latent.rope + self.latent.index_dim)
        return max(self.kv_heads / gpus, 1.0) * (self.head_dim + self.value_dim)

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The projections of a layer. QKV is one matrix, whose KV heads are copied where GPUs outnumber them."""
        out = Matrix("attention output", hidden, self.heads * self.value_dim, COLUMNS)
        if self.latent is None:
            width = self.heads * (self.head_dim + (self.value_dim if self.gated else 0))
            return Matrix("QKV projection", width + self.kv_heads * (self.head_dim + self.value_dim), hidden), out
        m = self.latent
        own = self.heads * (m.nope + m.rope)
        down = m.rank + m.rope
        query = Matrix("query: up", own, m.query_rank) if m.query_rank else Matrix("query", own, hidden)
        index: tuple[Matrix, ...] = ()
        if m.index_heads:
            index = (
                Matrix("indexer: query", m.index_heads * m.index_dim, m.query_rank or hidden, WHOLE),
                Matrix("indexer: key", m.index_dim, hidden, WHOLE),
                Matrix("indexer: weights", m.index_heads, hidden, WHOLE),
            )
        return (
            Matrix("latent: down", m.query_rank + down, hidden, WHOLE),
            query,
            Matrix("latent: up", self.heads * (m.nope + m.value), m.rank),
            *index,
            *((Matrix("output gate", self.heads * self.value_dim, hidden),) if self.gated else ()),
            out,
        )


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers that keep a state of a request in place of its tokens: linear attention, state-space, convolutions.

    kind: `gdn` (gated delta net), `kda` (Kimi delta attention), `mamba2`, `mamba`, `lightning`, `conv`, `rglru`.
    `conv` is the width of its convolution. inputs, outputs: scalars that its projections make of a token, and the
    width that the last one reads; `others`: parameters of a layer in neither.
    """

    kind: str
    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    inputs: int
    outputs: int
    others: int = 0

    @property
    def state(self) -> int:
        """Scalars of a request's state in a layer, over all GPUs: the recurrent part, in 32 bits in most engines."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Memory of a request in a layer, over all GPUs: 32 bits for a scalar of the state, 16 for the convolution."""
        return 4 * self.state + 2 * self.window

    @property
    def window(self) -> int:
        """Scalars of a request's last tokens that the convolution reads, in a layer, over all GPUs."""
        channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        return max(self.conv - 1, 0) * channels

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The projections of a layer."""
        return (
            Matrix(f"{self.kind}: in", self.inputs, hidden),
            Matrix(f"{self.kind}: out", hidden, self.outputs, COLUMNS),
        )
