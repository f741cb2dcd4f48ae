"""Constants from measurements: a program's constants fitted to the latencies observed in each load stage.

Start at `fit.py`, which fits the mean field and corrects it by full replays. `loss.py` has the data and the loss,
`problem.py` the objective, `meanfield.py` the prediction of a load stage and its slopes. `methods.py` minimises, by the
compiled search of `gauss_newton.py`; `replayed.py` fits irregular loads by replays alone; `steps.py` fits single steps.
"""
