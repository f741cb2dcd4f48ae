"""Nothing is downloaded when litellm is imported, by whichever way: its price list would change what a run may spend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_world
from console import TIMEOUT_S
from paths import ROOT

VARIABLE = "LITELLM_LOCAL_MODEL_COST_MAP"
# Python runs this at its start, in worker processes too: attempts to connect are written down and fail.
SITE = """
import os
import socket


def log(address):
    with open(os.environ["ATTEMPTS"], "a") as file:
        print(address, file=file)
    raise OSError(101, "no network in this test")


class Blocked(socket.socket):
    def connect(self, address):
        return super().connect(address) if self.family == socket.AF_UNIX else log(address)

    def connect_ex(self, address):
        return super().connect_ex(address) if self.family == socket.AF_UNIX else log(address)


socket.socket = Blocked
socket.getaddrinfo = lambda *args, **kwargs: log(args)
socket.create_connection = lambda address, *args, **kwargs: log(address)
"""
# In place of OpenEvolve: a version of it that imports litellm itself.
RIVAL = "import litellm\n"
DATABASE = "Program = dict\n"
# In place of litellm: it tries to connect whenever litellm does (see the two tests of litellm itself), and is
# imported in no time.
STAND_IN = f"""
import os
import socket

if os.getenv("{VARIABLE}", "").lower() != "true":
    socket.create_connection(("raw.githubusercontent.com", 443))
"""
IMPORTED = "import sys, time; time.sleep(0.2); assert 'litellm' in sys.modules"  # a thread may try a moment later
WAYS = {
    "the client": "from evolve.search.llm.client import litellm; litellm()",
    "the prices": "from evolve.search.llm.client import listed_price; assert listed_price('openai/gpt-4o-mini')",
    "a library after the command line's door": "import evolve.cli.entry; import openevolve",
    "a library after the Python interface": "import evolve; evolve.fit; import openevolve",
    "the engine": "import evolve.cli.entry; from research.engines import openevolve as e; e._member()",
    "a worker process": """
from evolve.cli import entry
from evolve.search.pool.local import LocalPool
from evolve.search.pool.process import WorkerCall
from evolve.output.progress import Line
from ways_of_import import loaded
pool = LocalPool(1, Line(True))
assert pool.submit(WorkerCall(loaded)).result()
pool.close()
import litellm
""",
}
TASK = """
import sys, time


def loaded():
    import openevolve
    time.sleep(0.2)
    return "litellm" in sys.modules
"""


def attempts(folder: Path, code: str, stand_in: bool = False, **variables: str) -> str:
    """The addresses that a fresh interpreter, or a process that it starts, tried to reach while it ran this code, which
    imports litellm or what stands in for it."""
    if stand_in:
        (folder / "litellm.py").write_text(STAND_IN)
    (folder / "sitecustomize.py").write_text(SITE)
    (folder / "openevolve").mkdir()
    (folder / "openevolve" / "__init__.py").write_text(RIVAL)
    (folder / "openevolve" / "database.py").write_text(DATABASE)
    (folder / "ways_of_import.py").write_text(TASK)
    return tried(folder, [sys.executable, "-c", f"{code}\n{IMPORTED}"], **variables)


def tried(folder: Path, command: list[str], **variables: str) -> str:
    log = folder / "attempts"
    log.write_text("")
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env |= {"PYTHONPATH": f"{folder}:{ROOT}", "ATTEMPTS": str(log), **variables}
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return log.read_text()


@pytest.mark.slow
def test_litellm_left_alone_tries_to_connect(tmp_path: Path) -> None:
    """Otherwise the tests below could not fail."""
    assert "raw.githubusercontent.com" in attempts(tmp_path, "import litellm")


@pytest.mark.parametrize("value", [None, "False", "True"])
def test_what_stands_in_for_litellm_connects_unless_it_is_told_not_to(value: str | None, tmp_path: Path) -> None:
    variables = {} if value is None else {VARIABLE: value}
    code = "import sys\ntry: import litellm\nexcept OSError: sys.modules['litellm'] = None"
    found = attempts(tmp_path, code, stand_in=True, **variables)
    assert bool(found) == (value != "True")


@pytest.mark.slow
@pytest.mark.parametrize("asks", [pytest.param({}, id="unset"), pytest.param({VARIABLE: "False"}, id="the user's own")])
@pytest.mark.parametrize("way", WAYS)
def test_an_import_connects_to_nothing(way: str, asks: dict[str, str], tmp_path: Path) -> None:
    """Of litellm itself. That the other ways are closed to it too, its stand-in says daily."""
    assert attempts(tmp_path, WAYS[way], **asks) == ""


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("the client", "the prices")])
def test_what_stands_in_for_litellm_connects_to_nothing(way: str, tmp_path: Path) -> None:
    assert attempts(tmp_path, WAYS[way], stand_in=True, **{VARIABLE: "False"}) == ""


@pytest.mark.slow
def test_a_comparison_with_openevolve_connects_to_nothing(tmp_path: Path) -> None:
    """With OpenEvolve as it is installed, in this process and in two workers."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    config = tiny_world.write(tmp_path, **tiny_world.BRIEF)
    args = ["--config", config, "--budget", 9, "--seeds", 1, "--only", "evolution,openevolve", "--out", "b"]
    command = [sys.executable, "-m", "research", "baselines", *map(str, args), "--workers", "2", "--quiet"]
    assert tried(tmp_path, command) == ""
