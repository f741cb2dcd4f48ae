"""Checks of a program's times on synthetic batches, without any measured run.

`gates.py`: a candidate must pass these before it is scored. `physics.py`: consistency with datasheets and with measured
kernels. `sweep.py` makes the batches.
"""
