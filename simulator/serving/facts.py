"""The static facts of a deployment: the `s.` fields by name, and the curves of its measured kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np

from simulator.common.errors import InputError
from simulator.common.text import listed
from simulator.kernels.curves import Deployed, kernels
from simulator.kernels.tables import names
from simulator.model.omissions import Omission
from simulator.schema import CURVES


class Facts(dict[str, float]):
    """Field name -> value, and `deployed`, from which the curves are computed when one is first read.

    `deployed` is None if the GPU has no measured kernels. `omitted`: parts of the model that no field counts.
    `latent_attention`: True for MLA. `where` begins errors about the deployment, for example `my.yaml: experiment 'x'`.
    `scaled`: a GPU without measured kernels, as YAML that gives it those of another. `prefill`: those of the pool
    that computes the prompts, if another one does (simulator.serving.pools).
    """

    def __init__(
        self,
        fields: Mapping[str, float] | Iterable[tuple[str, float]],
        deployed: Deployed | None = None,
        omitted: tuple[Omission, ...] = (),
        latent_attention: bool = False,
        where: str = "",
        scaled: str = "",
        prefill: Facts | None = None,
    ) -> None:
        super().__init__(fields)
        self.deployed = deployed
        self.omitted = omitted
        self.latent_attention = latent_attention
        self.where = where
        self.scaled = scaled
        self.prefill = prefill

    @cached_property
    def curves(self) -> Mapping[str, np.ndarray] | None:
        """The curves of the deployment's kernels by name; None if its GPU has none."""
        return kernels(self.deployed).curves if self.deployed else None

    def __eq__(self, other: object) -> bool:
        """True if all fields are equal, and the kernels and the pool for prompts, if the other is a Facts too."""
        if not super().__eq__(other):
            return False
        return all(getattr(self, name) == getattr(other, name, getattr(self, name)) for name in ("deployed", "prefill"))

    def __ne__(self, other: object) -> bool:
        return not self == other  # dict has one of its own, which would ask the fields alone

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Facts], tuple[object, ...]]:
        more = self.deployed, self.omitted, self.latent_attention, self.where, self.scaled, self.prefill
        return Facts, (dict(self), *more)


def has_curves(facts: Mapping[str, float]) -> bool:
    """True if the deployment has measured kernels."""
    return getattr(facts, "deployed", None) is not None


def prefill_of(facts: Mapping[str, float]) -> Mapping[str, float] | None:
    """The facts of the pool that computes the prompts, if another one does."""
    prefill: Mapping[str, float] | None = getattr(facts, "prefill", None)
    return prefill


def has_latent_attention(facts: Mapping[str, float]) -> bool:
    """True if the deployment's model has latent attention (MLA)."""
    return getattr(facts, "latent_attention", False)


def omitted(facts: Mapping[str, float]) -> tuple[str, ...]:
    """A sentence for each part of the deployment's model that no field counts, with the consequence."""
    return tuple(omission.text for omission in getattr(facts, "omitted", ()))


def left_out(deployments: Iterable[tuple[str, Mapping[str, float]]]) -> tuple[str, ...]:
    """`NAME, NAME: sentence` for the omissions of named deployments: each sentence once, with at most three names."""
    names_by_text: dict[str, dict[str, None]] = {}
    for name, facts in deployments:
        for text in omitted(facts):
            names_by_text.setdefault(text, {})[name] = None
    return tuple(f"{listed([*names], 3)}: {text}" for text, names in names_by_text.items())


def curve_of(facts: Mapping[str, float], name: str) -> np.ndarray:
    """float64[knots]: a curve of the deployment, one of schema.CURVES, in us by tokens, requests or prompt length.

    Raises InputError naming the deployment if its GPU has no measured kernels.
    """
    curves: Mapping[str, np.ndarray] | None = getattr(facts, "curves", None)
    if curves is None:
        where, scaled = getattr(facts, "where", ""), getattr(facts, "scaled", "")
        line = f": write `{scaled}` in its experiment" if scaled else ""
        raise InputError(
            (f"{where}: " if where else "")
            + "kernels: the program reads measured kernels, and this deployment has none: choose a GPU with tables "
            f"({', '.join(names())}), name one of them as `kernels` of the GPU{line}, or use a program without kernel "
            "fields"
        )
    knots = curves[name]
    assert len(knots) == CURVES[name], name
    return knots
