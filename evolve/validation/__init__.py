"""Held-out errors: the whole search repeated in every fold, without what the fold holds out.

Start at `validate.py`: `folds.py` says what is held out, `search.py` searches the rest, `rows.py` predicts what was
held out, `summary.py` adds it up, `log.py` counts how often anyone looked; `report.py` and `csv_file.py` show it.
"""
