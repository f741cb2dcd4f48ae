"""How a serving instance keeps time: what happens in every step, for any step times. Start at `run.py`."""
