"""A small, total, typed language that is also legal Python. Programs are parsed, never executed.

Imports `simulator.schema` and `simulator.common` only. Start at `ir.py`; `parse.py` and `unparse.py` are inverses. The
tests run the examples of docstrings; there, `parse` reads a program, `expr` an expression, and `spell` writes one.
"""
