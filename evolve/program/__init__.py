"""What one does with one program: show, check, predict, fit, score on steps, simulate, emit, benchmark.

One module per command, each with its result as a value, the JSON of it, and how it is printed. Start at `show.py`.
`fit/` and `steps/` are the larger commands `evolve fit` and `evolve score-steps`; `cases.py` reads the files of
`evolve simulate`; `ship.py` makes a run's champion the shipped one.
"""
