"""Proposing programs: offline operators that change elites, and the interface that every proposer follows.

Start at `proposer.py`. `offline.py` makes one proposal with `operators.py`, which edit the sums of `terms.py` with the
fields of `vocabulary.py`; `restrictions.py` says what they must not make. Language models are in `llm/`.
"""
