"""The ground floor: the fields that a program may read, its language, and the replay of experiments under it.

Imports numpy, numba and the standard library only; pyyaml in `documents`, pyarrow and scipy in `kernels`.
Start at `schema.py`, then `language/ir.py`, then `replay.py`.
"""
