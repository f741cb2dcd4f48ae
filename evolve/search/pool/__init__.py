"""Where long work is carried out: in this process, in processes of this machine, or on a cluster.

Start at `pool.py` (tasks, and what happens if one fails) and `process.py` (a worker process, whose side of the
conversation is `child.py`). `local.py` has the pools of this machine, `cluster.py` that of dask.distributed. For it
`connection.py` reaches a scheduler, `remote.py` is what its workers do, and `identity.py` tells which of them may.
"""
