"""The tests compute as the command line does."""

from evolve import blas

blas.settle()
