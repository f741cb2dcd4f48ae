"""`make rejudged`: what people believed before this project, each belief tested on the corrected data.

Start at `claims.py`, which lists the beliefs with the experiment and the rule of each. `verdict.py` has the rules,
`loads.py` the experiments on load stages, `cycles.py` and `forms.py` those on measured cycles, `world.py` what all of
them read, and `page.py` writes docs/rejudged.md.
"""
