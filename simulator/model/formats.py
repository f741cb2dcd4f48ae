"""How the matrices of a model are stored: the types of their weights, part by part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A type of weights. `bits` of a weight, with its share of the scales and zero points.

    name: `bf16`; `fp8` with a scale a tensor or channel, `fp8_block` with one a block; `int8` with activations in 8
    bits; `nvfp4` and `mxfp4`; `int4` and its like, weights alone, which are widened to 16 bits in the kernel.
    """

    name: str
    bits: float

    @property
    def bytes(self) -> float:
        return self.bits / 8.0

    @property
    def is_fp8(self) -> bool:
        return self.name in ("fp8", "fp8_block")


BF16 = Format("bf16", 16.0)
FP8 = Format("fp8", 8.0)
FP8_BLOCK = Format("fp8_block", 8.0)
NVFP4 = Format("nvfp4", 4.0 + 8.0 / 16)  # a scale of 8 bits for 16 weights
MXFP4 = Format("mxfp4", 4.0 + 8.0 / 32)


def integers(bits: int, group: int = 0, zero_points: bool = False) -> Format:
    """Whole numbers with a scale in 16 bits, and perhaps a zero point, for a group of weights; 0: a channel or more."""
    shared = 16.0 + (bits if zero_points else 0.0)
    return Format(f"int{bits}", bits + (shared / group if group else 0.0))


INT4 = integers(4, 128)


@dataclass(frozen=True, slots=True)
class Formats:
    """The types of a model's parts. Embeddings, lm_head, routers and norms are always in 16 bits.

    attention: its projections, and those of linear attention. dense, shared, experts: of feed-forward blocks, shared
    and routed experts. mixed: the parts of which some matrices have another type.
    """

    attention: Format = BF16
    dense: Format = BF16
    shared: Format = BF16
    experts: Format = BF16
    mixed: tuple[str, ...] = ()

    @classmethod
    def all(cls, one: Format) -> Formats:
        return cls(one, one, one, one)


IN_16 = Formats()
