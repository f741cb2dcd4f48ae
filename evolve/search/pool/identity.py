"""What a process computes with: two processes of the same identity give the same digits."""

from __future__ import annotations

import platform
import sys
from hashlib import blake2b
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy

from evolve import __version__

PACKAGES = ("archive", "configs", "evaluator", "evolve", "seeds", "simulator", "translate_go")
LIBRARIES = ("cma", "deap", "numba", "numpy", "scipy")
SIZE = 96  # of the matrices: larger than the blocks of any kernel of OpenBLAS


def identity() -> dict[str, str]:
    """What the digits of this process depend on, by name: the engine, its libraries, and linear algebra itself."""
    return {
        "Python": ".".join(map(str, sys.version_info[:2])),
        "machine": platform.machine(),
        **{name: version(name) for name in LIBRARIES},
        "engine": f"{__version__}, sources {sources()}",
        "linear algebra": linear_algebra(),
    }


def sources() -> str:
    """A digest of the engine's source and data files."""
    digest = blake2b(digest_size=6)
    for package in PACKAGES:
        folder = _folder(package)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def _folder(package: str) -> Path:
    """Where a package is. It is not imported: that would take most of the time that a digest takes."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    return Path(spec.submodule_search_locations[0])


def linear_algebra() -> str:
    """A digest of products, decompositions and elementary functions of some matrices: the bits, not rounded.

    It differs between the kernels of OpenBLAS, which add up in different orders, and between the vector units that
    numpy takes for exponentials.
    """
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, SIZE, SIZE))
    symmetric = a @ a.T + np.eye(SIZE)
    values = [
        a @ b,
        a @ b[0],
        np.linalg.solve(a, b),
        np.linalg.lstsq(a[:, :9], b[:, 0], rcond=None)[0],
        np.linalg.eigh(symmetric)[0],
        np.linalg.svd(a, compute_uv=False),
        scipy.linalg.cho_solve(scipy.linalg.cho_factor(symmetric), b),
        scipy.linalg.qr(a, mode="r")[0],
        np.exp(a),
        np.log(np.abs(a)),
        np.abs(a) ** 1.7,
        a.sum(axis=0),
    ]
    return blake2b(b"".join(np.ascontiguousarray(value).tobytes() for value in values), digest_size=6).hexdigest()
