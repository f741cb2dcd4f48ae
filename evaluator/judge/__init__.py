"""Judgements on what a program says of batches, without any measured run.

Start at `gates.py`, which a candidate must pass before it is scored. `physics.py` and `kernel_sums.py` check its
consistency with datasheets and with measured kernels; `sweep.py` makes the batches.
"""
