"""Other ways to search, under the budget and the evaluator of our own: what does the engine itself contribute?

`judge.py` counts, assesses and journals the candidates of one search, `engines.py` names the searches, `compare.py`
runs them and compares, `report.py` says what came out.
"""
