"""Linear algebra with the same digits everywhere: one thread, and one set of kernels whatever the processor.

OpenBLAS, which numpy and scipy bring along, otherwise chooses kernels by the processor it finds. They add up in
different orders, so that fitted constants differ in the sixth digit and archives from there on.
"""

from __future__ import annotations

import os
import sys

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KERNELS = "Haswell"  # what OpenBLAS calls those for AVX2, which any x86 server of the last ten years has


def settle() -> None:
    """Call before numpy is imported: afterwards its kernels are chosen, and worker processes shall have the same.
    What the user's environment says stands."""
    for name in THREADS:
        os.environ.setdefault(name, "1")
    if "numpy" not in sys.modules and has_avx2():
        os.environ.setdefault("OPENBLAS_CORETYPE", KERNELS)


def has_avx2() -> bool:
    """Whether the first processor is an x86 with AVX2, as far as Linux tells; elsewhere False."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            return " avx2 " in f.read(8192)  # its flags stand on one line
    except OSError:
        return False
