"""The ground floor: the fields a program may read, the language it is written in, and time passing under it.

Imports numpy, numba and the standard library only. Start at `schema.py`, then `language/ir.py`, then `replay.py`.
"""
