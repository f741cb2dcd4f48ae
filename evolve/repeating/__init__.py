"""The same search under several seeds, and pilots: how much of a result is luck?

`repeats.py` makes and works on the runs, `outcome.py` says what they reached together, `report.py` prints it.
"""
