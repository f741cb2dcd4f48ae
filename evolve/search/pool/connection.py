"""Connecting to a scheduler of dask.distributed, by its address or its file, or starting one on this machine."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import Any

from simulator.common.documents import read_json
from simulator.common.errors import InputError

INSTALL = "needs the extra: `make cluster`, or pip install 'evolve-latency[cluster]'"
LOCAL = "local:"  # prefix of a number of workers to start on this machine
UNWATCHED = {  # settings of dask: by default its watching itself takes some percent of a core
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.scheduler.active-memory-manager.start": False,  # results arrive as events, so workers hold none
}
CONNECT_S = 10.0  # to wait for an answer of a scheduler


def connected(where: str) -> tuple[Any, Any]:
    """The local cluster that was started, None for another one, and the client of the scheduler."""
    try:
        # An optional library, which takes half a second to load.
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise InputError(f"--cluster: {INSTALL}") from None
    for name in [*logging.root.manager.loggerDict, "asyncio", "tornado.application"]:
        if name.split(".")[0] in ("distributed", "asyncio", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what matters is in a line of ours
    warnings.filterwarnings("ignore", "Sending large graph")  # a parcel, once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ports that are taken, and versions that differ
        if where.startswith(LOCAL):
            number = where.removeprefix(LOCAL)
            if not number.isdecimal() or not int(number):
                raise InputError(f"--cluster {where}: {number or 'nothing'} is no number of workers: give local:4, say")
            # Workers in this process: they only hand on tasks, and what carries these out are processes anyway. So the
            # memory of this process is not theirs, and they need no limit at which they would pause.
            with dask.config.set(UNWATCHED):
                cluster = LocalCluster(n_workers=int(number), threads_per_worker=1, processes=False, memory_limit=None,
                                       silence_logs=logging.CRITICAL)  # fmt: skip
            return cluster, Client(cluster)
        address = _address(where)
        try:
            return None, Client(address, timeout=CONNECT_S)
        except (OSError, ValueError) as e:
            raise InputError(f"--cluster {where}: no scheduler answers ({type(e).__name__}): start one with `dask "
                             "scheduler`, or correct the address") from None  # fmt: skip


def _address(where: str) -> str:
    """The address of a scheduler, which may be in its scheduler file. Raises InputError."""
    if "://" in where:
        if where.startswith(("http://", "https://")):
            scheme = where.partition("://")[0]
            raise InputError(
                f"--cluster {where}: {scheme} is not a scheme of schedulers: write it like tcp://HOST:8786"
            )
        if not re.search(r":\d+/?$", where):
            raise InputError(f"--cluster {where}: has no port: write it like tcp://HOST:8786")
        return where
    if re.fullmatch(r"[\w.-]+:\d+", where):
        raise InputError(f"--cluster {where}: is not an address: write tcp://{where}")
    if not Path(where).is_file():
        name = where or repr(where)
        raise InputError(f"--cluster {name}: no such scheduler file: name one, tcp://HOST:PORT, or local:N")
    try:
        return str(read_json(Path(where), "name the file that `dask scheduler --scheduler-file` wrote")["address"])
    except (KeyError, TypeError):
        raise InputError(f"--cluster {where}: names no address: it is not a file of `dask scheduler`") from None
