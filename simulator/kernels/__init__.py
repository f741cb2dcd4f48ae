"""Measured kernels: the time of each operation of a step on a GPU. Start at `curves.py`."""
