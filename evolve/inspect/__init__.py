"""Looking at programs and runs: show, check, explain, diagnose, ablate, blend, and lists of what there is.

Start at `show.py`.
"""
