"""How a serving instance keeps time: the events of every step, for any step times. Start at `run.py`."""
