"""A small, total, typed language that is also legal Python. Programs are parsed, never executed.

Imports `simulator.schema` and `simulator.common` only. Start at `ir.py`; `parse.py` and `unparse.py` are inverses.
Every function has an example that runs in the tests. There, `parse` reads a program, `expr` an expression over `b` and
`s`, and `spell` writes an expression.
"""
