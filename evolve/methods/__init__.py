"""Every method of the original exercise on one bench, trained by its own protocol and by ours.

Start at `catalog.py`, which lists the methods. `samples.py` has the times that their own protocols train on,
`recipe.py` the training, `closed_form.py` what needs none, `train.py` both protocols of any method, `bench.py` what is
held out and measured, and `view.py` the table.
"""
