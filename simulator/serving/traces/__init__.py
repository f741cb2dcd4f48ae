"""Traces and results of load generators in files: recorded requests, or their means, in the formats that are published.

Start at `read.py` for a trace, and at `formats.py`, which knows each format by its content. `result.py` is what every
reader of a load generator's file makes; there is a module for each tool. `csv.py` reads columns of any CSV file.
"""
