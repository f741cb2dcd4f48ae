"""Predictions for planners: experiments, sweeps, replicas, limits, sensitivities and the warnings that go with them.

Start at `predict.py` and `sweep.py`.
"""
