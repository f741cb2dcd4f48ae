"""The compiled clocks and solvers, which take half a minute to compile and are then read from a cache.

`compile_all` compiles them in two processes, before the processes that run tests would each compile everything;
`python tests/support/compiled.py clocks|fit` is one of the two.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import tiny_world
from paths import ROOT

from evolve.cli import run_command
from simulator.clock.bind import bind
from simulator.clock.replay import replay_bound
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import load_experiments
from simulator.serving.load import Load, load_of

PROGRAM = "def step_time(b, s, *, a=4000.0, c=20.0): return a + c * b.decode_reqs + b.kv_read_us"


def clocks(data: Path) -> None:
    """The fast clocks of loads whose blocks are counted and of accounts, and the exact clock. A fit uses the third."""
    experiment, program = load_experiments(data)[0], parse(PROGRAM)
    bound = bind(assemble(program), program.theta, experiment.facts)
    load = load_of(experiment, 1)
    few = Load(load.requests, replace(load.limits, blocks=load.written - 1))
    assert replay_bound(few, bound).run.fast and replay_bound(load, bound, account=True).run.fast
    replay_bound(load, bound, force_exact=True, account=True)


def fit(data: Path) -> None:
    """What a fit calls: the mean field, its solver, and the plainest fast clock."""
    args = ["fit", "linear_kv", "--experiments", str(data), "--out", str(data.parent / "fitted.py")]
    assert run_command(args) == 0


def compile_all() -> None:
    """Compile both halves, each in a process; returns at once if all is in the cache."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([sys.executable, __file__, part], env=environment, stdout=subprocess.DEVNULL)
        for part in ("clocks", "fit")
    ]
    assert [process.wait() for process in processes] == [0, 0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tiny_world.write(Path(folder))
        {"clocks": clocks, "fit": fit}[sys.argv[1]](Path(folder) / "data.yaml")
