"""A small, total, typed language that happens to be legal Python; programs are parsed, never executed.

Imports `simulator.schema` and `simulator.errors` only. Start at `ir.py`; `parse.py` and `unparse.py` are
inverse.
"""
