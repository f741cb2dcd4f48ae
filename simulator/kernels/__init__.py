"""Measured kernels: what each operation of a step costs on a GPU."""
