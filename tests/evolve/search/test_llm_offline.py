"""Nothing is downloaded when litellm is imported, by whichever way: its price list would change what a run may spend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
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
# In place of litellm: it tries to connect whenever litellm does (see the two tests of litellm itself), and is
# imported in no time.
STAND_IN = f"""
import os
import socket

if os.getenv("{VARIABLE}", "").lower() != "true":
    socket.create_connection(("raw.githubusercontent.com", 443))
"""
WAYS = {
    "the prices": "from evolve.search.llm.client import listed_price; assert listed_price('openai/gpt-4o-mini')",
    "a library after the command line's door": "import evolve.cli.entry; import rival",
    "a library after the Python interface": "import evolve; evolve.fit; import rival",
    "a worker process": """
from evolve.cli import entry
from evolve.search.pool.local import LocalPool
from evolve.search.pool.process import WorkerCall
from evolve.output.progress import Line
from rival import loaded
pool = LocalPool(1, Line(True))
assert pool.submit(WorkerCall(loaded)).result()
pool.close()
""",
}
# In place of OpenEvolve: a library that imports litellm itself.
RIVAL = """
import sys, time
import litellm


def loaded():
    time.sleep(0.2)  # a thread may try a moment later
    return "litellm" in sys.modules
"""


def attempts(folder: Path, code: str, stand_in: bool = False, **variables: str) -> str:
    """The addresses that a fresh interpreter, or a process that it starts, tried to reach while it ran this code, which
    imports litellm or what stands in for it."""
    for name, text in ({"sitecustomize": SITE, "rival": RIVAL} | ({"litellm": STAND_IN} if stand_in else {})).items():
        (folder / f"{name}.py").write_text(text)
    log = folder / "attempts"
    log.write_text("")
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env |= {"PYTHONPATH": f"{folder}:{ROOT}", "ATTEMPTS": str(log), **variables}
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT_S}
    command = [sys.executable, "-c", f"{code}\nfrom rival import loaded; assert loaded()"]
    ran = subprocess.run(command, cwd=folder, env=env, check=False, **options)
    assert ran.returncode == 0, ran.stderr
    return log.read_text()


@pytest.mark.slow
def test_litellm_left_alone_tries_to_connect_and_by_our_client_does_not(tmp_path: Path) -> None:
    """Otherwise the tests below could not fail."""
    for name in ("alone", "client"):
        (tmp_path / name).mkdir()
    assert "raw.githubusercontent.com" in attempts(tmp_path / "alone", "import litellm")
    assert attempts(tmp_path / "client", WAYS["the prices"], **{VARIABLE: "False"}) == ""


@pytest.mark.parametrize("value", [None, "False", "True"])
def test_what_stands_in_for_litellm_connects_unless_it_is_told_not_to(value: str | None, tmp_path: Path) -> None:
    variables = {} if value is None else {VARIABLE: value}
    code = "import sys\ntry: import litellm\nexcept OSError: sys.modules['litellm'] = sys"
    found = attempts(tmp_path, code, stand_in=True, **variables)
    assert bool(found) == (value != "True")


@pytest.mark.parametrize("way", [way for way in WAYS if way != "the prices"])
def test_what_stands_in_for_litellm_connects_to_nothing(way: str, tmp_path: Path) -> None:
    assert attempts(tmp_path, WAYS[way], stand_in=True, **{VARIABLE: "False"}) == ""
