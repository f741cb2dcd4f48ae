"""The errors of a fitted program and their causes, for a person or a model that proposes a better form.

Start at `diagnose.py`: errors by load stage, correlated with fields. `describe.py` prints a diagnosis as text,
`stage_steps.py` reconstructs the steps of a stage, `explain.py` ranks terms to add and constants to drop.
"""
