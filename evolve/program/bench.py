"""`evolve bench`: how long replays take, beside the same formula compiled into the clock."""

from __future__ import annotations

import gc
import platform
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.experiments import bundled_experiments, data_hash
from evolve import __version__
from evolve.report.run import console, new_table, show
from evolve.run import program as programs
from simulator.bind import Bound, bind
from simulator.clock.fast import build
from simulator.clock.run import Run, run_clock
from simulator.clock.steps import Steps, steps_of
from simulator.experiment.experiment import Experiment
from simulator.experiment.load import Limits, Load, load_of
from simulator.experiment.workload import Requests
from simulator.jit import njit
from simulator.language.complete import complete
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.replay import replay_bound
from simulator.stream import stream
from simulator.vm import experts_fraction

AFFINE = """
def step_time(b, s, *, weights=1.06213, kv=1.13127, layer=68.3711, decode=23.4127, prefill=11.3391):
    memory = weights * b.weight_read_us + kv * b.kv_read_us
    return memory + layer * s.layers + decode * b.decode_reqs + prefill * b.prefill_tokens
"""
# 30 operations, max, log and a branch among them
GENERAL = """
def step_time(b, s, *, weights=1.06213, kv=1.13127, layer=68.3711, decode=23.4127, prefill=11.3391, pairs=1.0113,
              floor=4000.7, batch=101.13, logits=1.21, chunk=31.7, few=64.3, late=0.97):
    memory = weights * b.weight_read_us + kv * b.kv_read_us + logits * b.logits_us
    compute = b.prefill_gemm_us + b.decode_gemm_us + pairs * b.prefill_attention_us + b.kv_write_us
    extra = batch * log1p(b.batch_size) + chunk * sqrt(b.prefill_tokens) + logits * b.allreduce_us
    base = layer * s.layers + decode * b.decode_reqs + prefill * b.prefill_tokens
    total = max(floor, max(memory, compute) + extra) + base
    return total if b.prefill_tokens > few else total * late + 0.5 * decode
"""
THETA = (1.06213, 1.13127, 68.3711, 23.4127, 11.3391)  # AFFINE's constants
ALPHA0_US = 5000  # the queueing time of a program that has none
REPEATS = 9
SEED = 1  # arrival seed
CANDIDATES = 10_000
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
EVERY_US = 100_000  # mean time between arrivals of the long traces


def bench(most: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Every figure; `most` requests in the longest trace. Times are the best of REPEATS, in one process, in ms."""
    experiments = [e for e in bundled_experiments() if e.quality == "clean"][:12]
    loads = [load_of(e, SEED) for e in experiments]
    say("compiling")
    affine, general = bounds(AFFINE, experiments), bounds(GENERAL, experiments)
    champion = bounds(programs.load(programs.CHAMPION).text, experiments)
    clocks = build(False, False, _affine), build(True, False, _affine), build(True, True, _affine)
    steps = [steps_of(b, load.limits) for b, load in zip(affine, loads, strict=True)]

    def replays(of: list[Bound], force_exact: bool = False) -> list[Run]:
        return [replay_bound(load, b, force_exact=force_exact).run for load, b in zip(loads, of, strict=True)]

    kinds: dict[str, Callable[[], list[Run]]] = {
        "affine": lambda: replays(affine),
        "general": lambda: replays(general),
        "champion": lambda: replays(champion),
        "exact": lambda: replays(affine, force_exact=True),
        "compiled": lambda: _compiled(experiments, loads, steps, clocks),
    }
    replay_ms, seen = {}, {}
    for name, run in kinds.items():
        say(f"replaying the 12 clean runs, {name}")
        replay_ms[name], seen[name] = best_ms(run)
    for name in ("exact", "compiled"):  # the same formula, so the same times
        for one, other in zip(seen["affine"], seen[name], strict=True):
            same = np.array_equal(one.first_us, other.first_us) and np.array_equal(one.decode_us, other.decode_us)
            assert same, f"the {name} clock disagrees"
    requests = sum(len(load.requests) for load in loads)
    counts = {name: sum(r.steps for r in runs) for name, runs in seen.items()}
    count = counts["affine"]
    each = {name: ms / counts[name] for name, ms in replay_ms.items()}  # other step times make other numbers of steps
    say("taking in new candidates")
    candidate_ms, growth_mib = candidates(experiments[0], loads[0])
    scaling = []
    for size in [s for s in SIZES if s <= most]:
        say(f"one trace of {size:,} requests")
        scaling.append(long_trace(size, affine[0]))
    return {
        "engine": __version__,
        "data": data_hash(experiments),
        "seeds": [SEED],
        "machine": machine(),
        "requests": requests,
        "steps": count,
        "replay_ms": replay_ms,
        "steps_of": counts,
        "ratio_to_compiled": {name: each[name] / each["compiled"] for name in kinds if name != "compiled"},
        "fast": {name: sum(r.fast for r in seen[name]) for name in kinds if name != "compiled"},
        "requests_per_s": requests / replay_ms["affine"] * 1e3,
        "steps_per_s": count / replay_ms["affine"] * 1e3,
        "candidate_ms": candidate_ms,
        "memory_growth_mib": growth_mib,
        "scaling": scaling,
        "peak_mib": peak_mib(),
    }


def bounds(text: str, experiments: list[Experiment]) -> list[Bound]:
    """The program on every experiment's deployment, nothing remembered yet."""
    program = complete(parse(text))
    code = assemble(program)
    return [bind(code, program.theta, e.facts) for e in experiments]


@njit
def _affine(v, prefills, decodes, tokens, pairs, context):  # type: ignore[no-untyped-def]
    """AFFINE as machine code, in its own order of evaluation; `v` as in `_compiled`."""
    weights = v[5] + v[6] * experts_fraction(v[7], v[8], float(tokens + decodes))
    memory = v[0] * weights + v[1] * (v[9] * context)
    return memory + v[2] * v[10] + v[3] * decodes + v[4] * tokens


FACTS = ("shared_weights_us", "experts_us", "active_experts", "experts", "kv_us_per_token", "layers")


def _compiled(
    experiments: list[Experiment], loads: list[Load], steps: list[Steps], clocks: tuple[Any, Any, Any]
) -> list[Run]:
    """The runs with `_affine` in the clock's place of the opcodes."""
    out = []
    for e, load, t in zip(experiments, loads, steps, strict=True):
        t.values[: len(THETA)] = THETA
        t.values[len(THETA) : len(THETA) + len(FACTS)] = [e.facts[name] for name in FACTS]
        out.append(run_clock(load, load.requests.arrival_us + ALPHA0_US, None, t, clocks=clocks))
    return out


def best_ms(run: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of REPEATS runs after a first one, and what the last returned."""
    seen = run()
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(REPEATS):
            begun = time.perf_counter()
            seen = run()
            times.append(time.perf_counter() - begun)
    finally:
        gc.enable()
    return min(times) * 1e3, seen


def candidates(experiment: Experiment, load: Load) -> tuple[float, float]:
    """Milliseconds from a new text to opcodes ready to run, the median of CANDIDATES different ones, and by how many
    MiB the process grew while it took in and replayed the later nine tenths of them."""
    few = Load(Requests(**{k: v[:50] for k, v in vars(load.requests).items()}), load.limits)
    times, before = [], 0.0
    for i in range(CANDIDATES):
        if i == CANDIDATES // 10:
            before = now_mib()
        text = GENERAL.replace("4000.7", f"{4000 + i / 7:.6g}")
        begun = time.perf_counter()
        program = complete(parse(text))
        bound = bind(assemble(program), program.theta, experiment.facts)
        times.append(time.perf_counter() - begun)
        replay_bound(few, bound)
    return float(np.median(times)) * 1e3, now_mib() - before


def long_trace(size: int, bound: Bound) -> dict[str, Any]:
    """Seconds for one trace of `size` requests: prompts of 566 tokens of their own, 250 tokens of output."""
    rng = stream(SEED, size)
    arrival = np.cumsum(rng.exponential(EVERY_US, size)).astype(np.int64)
    alone, zeros = np.full(size, -1, np.int32), np.zeros(size, np.int32)
    requests = Requests(
        arrival_us=arrival, stage=zeros, input_len=zeros + 566, output_len=zeros + 250, prompt=alone,
         group=alone, shared_len=zeros, deadline_us=np.zeros(size, np.int64),
    )  # fmt: skip
    limits = Limits(max_seqs=128, budget=2048, threshold=0, block=16, blocks=27_000)
    begun = time.perf_counter()
    seen = replay_bound(Load(requests, limits), bound)
    seconds = time.perf_counter() - begun
    return {"requests": size, "seconds": seconds, "steps": seen.steps, "fast": seen.run.fast, "peak_mib": peak_mib()}


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return {"cpu": name, "python": platform.python_version(), "numba": version("numba"), "numpy": version("numpy")}


def peak_mib() -> float:
    """The most memory that this process ever held, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 2**20


def now_mib() -> float:
    """The memory that this process holds, MiB; the peak where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    return peak_mib()


def print_bench(result: dict[str, Any]) -> None:
    """The figures as a table and a few lines."""
    out = console()
    m = result["machine"]
    title = f"{result['requests']:,} requests, {result['steps']:,} steps, one core of {m['cpu']}, Python {m['python']}"
    table = new_table(title, "12 clean runs|>ms|>of compiled|>ns/step|>fast clock")
    for name, ms in result["replay_ms"].items():
        ratio, fast = result["ratio_to_compiled"].get(name), result["fast"].get(name)
        table.add_row(
            name, f"{ms:.2f}", "-" if ratio is None else f"{ratio:.2f}", f"{ms / result['steps_of'][name] * 1e6:.1f}",
            "-" if fast is None else f"{fast} of 12",
        )  # fmt: skip
    show(out, table)
    table = new_table("One trace", ">requests|>seconds|>us/request|>peak MiB")
    for row in result["scaling"]:
        each = row["seconds"] / row["requests"] * 1e6
        table.add_row(f"{row['requests']:,}", f"{row['seconds']:.3f}", f"{each:.3f}", f"{row['peak_mib']:.0f}")
    show(out, table)
    print(f"A new candidate: {result['candidate_ms']:.3f} ms; memory over {CANDIDATES:,} of them: "
          f"{result['memory_growth_mib']:+.1f} MiB")  # fmt: skip
    print(f"{result['requests_per_s']:,.0f} requests/s, {result['steps_per_s']:,.0f} steps/s (affine); "
          f"peak memory {result['peak_mib']:.0f} MiB")  # fmt: skip
