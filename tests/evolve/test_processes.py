"""How a process is prepared for linear algebra, and what new processes do not take over."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time

import pytest
from paths import ROOT
from pool_tasks import prepare, prepared

from evolve import processes
from evolve.report.progress import Line
from evolve.search.pool import Pool


@pytest.mark.skipif(not processes.has_avx2(), reason="nothing is chosen for this processor")
@pytest.mark.parametrize(
    "code, expected",
    [
        ("processes.settle()", "True Haswell"),
        ("processes.settle(); import numpy; processes.settle()", "True Haswell"),
        ("import numpy; processes.settle(); processes.settle()", "False Haswell"),  # workers are settled all the same
        ("os.environ['OPENBLAS_CORETYPE'] = 'Zen'; import numpy; processes.settle()", "True Zen"),  # the user's choice
    ],
)
def test_a_process_knows_whether_it_was_prepared_in_time(code: str, expected: str) -> None:
    code = f"""
import os
os.environ.pop("OPENBLAS_CORETYPE", None)
from evolve import processes
{code}
print(processes.settled(), os.environ["OPENBLAS_CORETYPE"])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert out.stdout.strip() == expected


def test_a_pool_ends_its_own_processes_and_no_others() -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        pool = Pool(1, prepare, (7,), Line())
        assert pool.submit(prepared, 3).result() == 21
        pool.close()
        assert other.is_alive()
    finally:
        other.kill()
        other.join()
    assert other.exitcode == -9  # by this test


def test_the_main_module_is_back_after_processes_were_started() -> None:
    before = sys.modules["__main__"]
    with processes.without_main():
        assert not hasattr(sys.modules["__main__"], "__file__")
    assert sys.modules["__main__"] is before


def test_outside_the_main_thread_no_signal_is_set() -> None:
    raised: list[Exception] = []

    def start() -> None:
        try:
            with processes.deaf_to_interrupts():
                pass
        except Exception as e:
            raised.append(e)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert not raised
