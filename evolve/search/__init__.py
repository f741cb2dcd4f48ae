"""One search: ask a proposer for programs, have them assessed, keep the good ones, report.

Start at `search.py`. `assessor.py` turns proposals into outcomes, `workers.py` runs the computation, `run.py` carries
out a whole search in a run folder, and `attribution.py` counts what each proposer contributed.
"""
