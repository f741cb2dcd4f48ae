"""One search: ask a proposer, have its proposals assessed, keep what is good, report.

Start at `search.py`. `assessor.py` says what becomes of a proposal, `workers.py` where that is computed, `run.py` does
all of it in a run folder, `attribution.py` says who proposed what.
"""
