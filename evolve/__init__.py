"""The loop: proposals, configuration, runs on disk, reports and the command line.

May import every other package. Start at `loop.py`; `cli/` is the door.
"""

__version__ = "0.3.0"
