"""The engine: what a run is, who proposes programs, one search and many, what is done with a program, the command line.

May import every other package. Start at `search/search.py`; `cli/` is the door.
"""

__version__ = "0.3.0"
