"""A cluster of dask.distributed on this machine: a scheduler and workers that are processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from console import wait_until
from paths import ROOT

START_S = 60


class DaskCluster:
    """A scheduler, and workers that come and go. Their output is in `folder`."""

    def __init__(self, folder: Path, port: int = 0, host: str = "127.0.0.1") -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.file.unlink(missing_ok=True)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._started(
            "scheduler",
            "--host",
            host,
            "--port",
            str(port),
            "--scheduler-file",
            str(self.file),
            "--dashboard-address",
            "127.0.0.1:0",
        )
        self._wait(self.file.exists)

    @property
    def address(self) -> str:
        """Where the scheduler listens."""
        return next(line.split()[-1] for line in self.log("scheduler").splitlines() if "Scheduler at:" in line)

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.log").read_text()

    def join(
        self,
        *options: str,
        env: Mapping[str, str] = {},
        nanny: bool = False,
        scheduler: str = "",
        below: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """A new worker, once it is registered.

        scheduler: the address that it is given, if not that of the scheduler's file. below: a command that starts it.
        """
        name = f"worker-{len(self.workers)}"
        worker = self._started(
            "worker",
            *([scheduler] if scheduler else ["--scheduler-file", str(self.file)]),
            "--nthreads",
            "1",
            "--name",
            name,
            "--no-dashboard",
            "--nanny" if nanny else "--no-nanny",
            *options,
            log=name,
            env=env,
            below=below,
        )
        self.workers.append(worker)
        self._wait(lambda: "Registered to:" in self.log(name))
        return worker

    def close(self) -> None:
        """End all processes."""
        for process in (*self.workers, self.scheduler):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def _started(
        self, what: str, *options: str, log: str = "", env: Mapping[str, str] = {}, below: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
        with (self.folder / f"{log or what}.log").open("w") as file:
            return subprocess.Popen(
                [*below, sys.executable, "-m", f"distributed.cli.dask_{what}", *options],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path, **env},
            )

    def _wait(self, ready: Callable[[], object]) -> None:
        wait_until(ready, START_S, lambda: "\n".join(path.read_text() for path in self.folder.glob("*.log")))
