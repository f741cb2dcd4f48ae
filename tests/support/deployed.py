"""The facts of a deployment, from a model and a GPU as mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.common.errors import Section
from simulator.serving.deployment import deployment_facts
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts
from simulator.serving.gpu import gpu_named, gpu_of
from simulator.serving.model import Model


def facts_of_terms(
    config: Mapping[str, Any], gpu: Mapping[str, Any] | str, engine: Engine, where: str = "test"
) -> Facts:
    """The facts of a model in config.json terms on a GPU by name or as a mapping."""
    given = gpu_named(gpu) if isinstance(gpu, str) else gpu_of(Section(where, "hardware", gpu))
    return deployment_facts(Model.of(config, where), given, engine, where)
