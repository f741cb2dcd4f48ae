"""The tests compute as the command line does."""

from evolve import processes

processes.settle()
