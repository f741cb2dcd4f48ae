"""The host simulator: replays of its traces, emitted Go, exchange of cases, and the speed of replays.

Start at `simulate.py` and `emit.py`.
"""
