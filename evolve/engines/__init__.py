"""Other engines on our evaluator: OpenEvolve's controller, and GEPA.

Start at `evaluator.py`, what both ask. Nothing else imports this package; each engine is an extra to install.
"""
