"""GPUs as deployments see them, and rows of their tables of kernels."""

from __future__ import annotations

import numpy as np

from simulator.kernels.roofline import KernelGpu
from simulator.kernels.tables import tables
from simulator.serving.engine import Engine
from simulator.serving.known import facts_of


def gpu_named(name: str) -> KernelGpu:
    """A GPU as deployments see it."""
    deployed = facts_of("llama-3.1-8b", name, Engine()).deployed
    assert deployed is not None
    return deployed.gpu


H100, H200, A100, B200, L40S = (gpu_named(name) for name in ("H100", "H200", "A100", "B200", "L40S"))


def rows_where(name: str, operation: str, **columns: object) -> dict[str, np.ndarray]:
    """The rows of a table with these values, in order of tokens if they have any."""
    rows = tables(name).rows[operation]
    mine = np.flatnonzero(np.all([rows[c] == value for c, value in columns.items()], axis=0))
    assert len(mine)
    if "tokens" in rows:
        mine = mine[np.argsort(rows["tokens"][mine], kind="stable")]
    return {c: x[mine] for c, x in rows.items()}


def never_falls(us: np.ndarray) -> bool:
    return bool((np.diff(us) >= -1e-9 * us[:-1]).all())
