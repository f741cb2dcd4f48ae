"""The tests compute as the command line does. Finished runs that tests only read are made once a session."""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import tiny_world
from hypothesis import settings

from evolve import processes

processes.settle()
# Tests know no models of the person who runs them, and leave none behind.
os.environ["EVOLVE_MODELS"] = str(Path(tempfile.gettempdir()) / f"evolve-tests-{os.getpid()}" / "models")
# Commands are suggested by the name that they are called by: here a shell finds `evolve`, as after activating .venv.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# Sentences are in lines that fit the terminal; here they have room, except where a test sets another width.
WIDTH = shutil.get_terminal_size().columns  # of pytest's own lines
os.environ["COLUMNS"] = "1000"
# Many tests interrupt a command. Where these tests were started with SIGINT ignored, as `nohup` in a script does, the
# command would inherit that and never end.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests start a hundred processes. Each would compile all sources again if none may keep the bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# `make test-all` takes the second one.
settings.register_profile("daily", max_examples=50, deadline=None)
settings.register_profile("all", max_examples=2000, deadline=None)
settings.load_profile("daily")


@pytest.hookimpl(trylast=True)  # after the reporter is made, which workers lack
def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.has_plugin("terminalreporter"):
        config.get_terminal_writer().fullwidth = WIDTH
    if getattr(config.option, "numprocesses", None):  # before the workers start, and not in them
        import compiled  # needs numpy, after `settle`

        compiled.compile_all()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of the tiny world."""
    return tiny_world.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 30 candidates by one worker, the only one in its folder. To be read only."""
    return tiny_world.run(tiny, tmp_path_factory.mktemp("runs") / "one", "--budget", 30)
