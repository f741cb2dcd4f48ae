"""How a process is prepared for linear algebra."""

from __future__ import annotations

import subprocess
import sys

import pytest
from paths import ROOT

from evolve import processes


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
