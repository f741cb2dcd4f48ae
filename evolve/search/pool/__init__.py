"""The places that carry out long work: this process, processes of this machine, or a cluster.

Start at `pool.py` (tasks, and what happens if one fails) and `process.py` (a worker process, both sides of it).
`local.py` has the pools of this machine, `cluster.py` that of dask.distributed, whose workers run `remote.py`.
"""
