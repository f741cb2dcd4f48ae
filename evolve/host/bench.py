"""`evolve bench`: the time of replays, compared with the same formula compiled into the clock, and of candidates."""

from __future__ import annotations

import gc
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.assess import NO_LIMITS, Scored
from evaluator.score import error_rows, score_set
from evolve import __version__
from evolve.output.columns import figures, words
from evolve.output.printing import prose, show
from evolve.output.progress import Line
from evolve.output.table import Table, number
from evolve.run import folder
from evolve.run import program as programs
from evolve.search.offline import operator_weights
from evolve.search.pool.local import Here, LocalPool
from evolve.search.workers import Workers, workers_of
from simulator.clock.bind import Bound, bind
from simulator.clock.fast import build
from simulator.clock.replay import replay_bound
from simulator.clock.run import ClockRun, run_clock
from simulator.clock.steps import KnownSteps, steps_of
from simulator.clock.vm import experts_fraction
from simulator.common.jit import njit
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json
from simulator.common.streams import stream
from simulator.language.complete import complete
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment
from simulator.serving.load import EngineLimits, Load, load_of
from simulator.serving.observations import CLEAN
from simulator.serving.trace import Requests

AFFINE = """
def step_time(b, s, *, weights=1.06213, kv=1.13127, layer=68.3711, decode=23.4127, prefill=11.3391):
    memory = weights * b.weight_read_us + kv * b.kv_read_us
    return memory + layer * s.layers + decode * b.decode_reqs + prefill * b.prefill_tokens
"""
# 30 operations, including max, log and a branch
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
TEXTS = 10_000  # programs whose compilation is timed
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
EVERY_US = 100_000  # mean time between arrivals of the long traces
CANDIDATES = 48  # candidates that are assessed, proposed with the seed PROPOSALS
PROPOSALS = 18
WORKERS = (1, 2)  # numbers of workers
FACTS = ("shared_weights_us", "experts_us", "active_experts", "experts", "kv_us_per_token", "layers")  # of `_affine`


@dataclass(frozen=True, slots=True)
class LongTrace:
    """One trace replayed by AFFINE. fast: the fast clock could be used throughout."""

    requests: int
    seconds: float
    steps: int
    fast: bool
    peak_mib: float


@dataclass(frozen=True, slots=True)
class CandidateCost:
    """The cost of `candidates` new programs, each a changed copy of a member of the shipped archive, fully assessed.

    stage_ms: CPU of one by stage of the assessment. proposal_ms: CPU of proposing one. replay_ms: CPU of one replay of
    all `runs` that it is judged on. candidate_in_replays: the sum of the stages over that. candidates_per_s: assessed
    in wall-clock time by so many workers, when nothing else runs.
    """

    candidates: int
    runs: int
    stage_ms: dict[str, float]
    proposal_ms: float
    replay_ms: float
    candidate_in_replays: float
    candidates_per_s: dict[int, float]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Every figure of `evolve bench`, with data and machine. The mappings are by kind of replay: affine, general,
    champion, exact (the affine program without the fast clock) and compiled (its formula in the clock).

    requests, steps: of the affine replays of the clean runs; steps_of: of each kind. replay_ms: the best of REPEATS.
    ratio_to_compiled: of the times per step. fast: number of runs by the fast clock. candidate_ms: from a new text to
    opcodes; memory_growth_mib: over the later nine tenths of TEXTS.
    """

    data: str
    seeds: tuple[int, ...]
    machine: Mapping[str, str]
    requests: int
    steps: int
    replay_ms: Mapping[str, float]
    steps_of: Mapping[str, int]
    ratio_to_compiled: Mapping[str, float]
    fast: Mapping[str, int]
    requests_per_s: float
    steps_per_s: float
    candidate_ms: float
    memory_growth_mib: float
    candidate: CandidateCost
    scaling: tuple[LongTrace, ...]
    peak_mib: float

    def to_json(self) -> JsonObject:
        ratio = {"candidate_in_replays": self.candidate.candidate_in_replays}
        return {"engine": __version__, **fields_to_json(self), **ratio}


def bench(most: int, announce: Callable[[str], None]) -> Benchmark:
    """Measure everything in one process, with `most` requests in the longest trace; `announce` names each step."""
    experiments = [e for e in bundled_experiments() if e.quality == CLEAN][:12]
    loads = [load_of(e, SEED) for e in experiments]
    announce("compiling")
    affine = bounds(AFFINE, experiments)
    runs, replay_ms = _replays(experiments, loads, affine, announce)
    requests = sum(len(load.requests) for load in loads)
    steps = {name: sum(r.steps for r in of_kind) for name, of_kind in runs.items()}
    # the number of steps depends on the step times, so times are compared per step
    per_step = {name: ms / steps[name] for name, ms in replay_ms.items()}
    kinds = [name for name in runs if name != "compiled"]
    announce("compiling new texts")
    candidate_ms, growth_mib = new_texts(experiments[0], loads[0])
    cost = candidate_cost(announce)
    scaling = []
    for size in [s for s in SIZES if s <= most]:
        announce(f"one trace of {size:,} requests")
        scaling.append(long_trace(size, affine[0]))
    return Benchmark(
        data=data_hash(experiments),
        seeds=(SEED,),
        machine=machine(),
        requests=requests,
        steps=steps["affine"],
        replay_ms=replay_ms,
        steps_of=steps,
        ratio_to_compiled={name: per_step[name] / per_step["compiled"] for name in kinds},
        fast={name: sum(r.fast for r in runs[name]) for name in kinds},
        requests_per_s=requests / replay_ms["affine"] * 1e3,
        steps_per_s=steps["affine"] / replay_ms["affine"] * 1e3,
        candidate_ms=candidate_ms,
        memory_growth_mib=growth_mib,
        candidate=cost,
        scaling=tuple(scaling),
        peak_mib=peak_mib(),
    )


def _replays(
    experiments: list[Experiment], loads: list[Load], affine: list[Bound], announce: Callable[[str], None]
) -> tuple[dict[str, list[ClockRun]], dict[str, float]]:
    """The replays of every kind, and the shortest time that each took, in ms."""
    general, champion = bounds(GENERAL, experiments), bounds(programs.load(programs.CHAMPION).text, experiments)
    clocks = build(False, False, _affine), build(True, False, _affine), build(True, True, _affine)
    steps = [steps_of(b, load.limits) for b, load in zip(affine, loads, strict=True)]

    def replays(bound: list[Bound], force_exact: bool = False) -> list[ClockRun]:
        return [replay_bound(load, b, force_exact=force_exact).run for load, b in zip(loads, bound, strict=True)]

    kinds: dict[str, Callable[[], list[ClockRun]]] = {
        "affine": lambda: replays(affine),
        "general": lambda: replays(general),
        "champion": lambda: replays(champion),
        "exact": lambda: replays(affine, force_exact=True),
        "compiled": lambda: _compiled(experiments, loads, steps, clocks),
    }
    runs, replay_ms = {}, {}
    for name, replay in kinds.items():
        announce(f"replaying the 12 clean runs, {name}")
        replay_ms[name], runs[name] = best_ms(replay)
    for name in ("exact", "compiled"):  # the same formula must give the same times
        for one, other in zip(runs["affine"], runs[name], strict=True):
            same = np.array_equal(one.first_us, other.first_us) and np.array_equal(one.decode_us, other.decode_us)
            assert same, f"the {name} clock disagrees"
    return runs, replay_ms


def bounds(text: str, experiments: list[Experiment]) -> list[Bound]:
    """The program bound to every experiment's deployment, with empty caches."""
    program = complete(parse(text))
    code = assemble(program)
    return [bind(code, program.theta, e.facts) for e in experiments]


@njit
def _affine(v, prefills, decodes, tokens, pairs, context):  # type: ignore[no-untyped-def]
    """AFFINE as machine code, in its own order of evaluation; `v` holds THETA, then FACTS."""
    weights = v[5] + v[6] * experts_fraction(v[7], v[8], float(tokens + decodes))
    memory = v[0] * weights + v[1] * (v[9] * context)
    return memory + v[2] * v[10] + v[3] * decodes + v[4] * tokens


def _compiled(
    experiments: list[Experiment], loads: list[Load], steps: list[KnownSteps], clocks: tuple[Any, Any, Any]
) -> list[ClockRun]:
    runs = []
    for e, load, t in zip(experiments, loads, steps, strict=True):
        t.values[: len(THETA)] = THETA
        t.values[len(THETA) : len(THETA) + len(FACTS)] = [e.facts[name] for name in FACTS]
        runs.append(run_clock(load, np.full(len(load.requests), ALPHA0_US), t, clocks=clocks))
    return runs


def best_ms(work: Callable[[], list[ClockRun]]) -> tuple[float, list[ClockRun]]:
    """The shortest of REPEATS calls after a first one, in ms, and the result of the last."""
    runs = work()
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(REPEATS):
            begun = time.perf_counter()
            runs = work()
            times.append(time.perf_counter() - begun)
    finally:
        gc.enable()
    return min(times) * 1e3, runs


def new_texts(experiment: Experiment, load: Load) -> tuple[float, float]:
    """Milliseconds from a new text to opcodes ready to run, the median of TEXTS ones; and the growth of the process.

    The growth, MiB, is that while it compiled and replayed the later nine tenths of them.
    """
    few = Load(load.requests.of(np.arange(50)), load.limits)
    times, before = [], 0.0
    for i in range(TEXTS):
        if i == TEXTS // 10:
            before = now_mib()
        text = GENERAL.replace("4000.7", f"{4000 + i / 7:.6g}")
        begun = time.perf_counter()
        program = complete(parse(text))
        bound = bind(assemble(program), program.theta, experiment.facts)
        times.append(time.perf_counter() - begun)
        replay_bound(few, bound)
    return float(np.median(times)) * 1e3, now_mib() - before


def candidate_cost(announce: Callable[[str], None]) -> CandidateCost:
    """The cost of a candidate of the shipped run's search; `announce` names each step."""
    run = folder.open_run(folder.shipped_run())
    fitted, _ = run.experiments()
    line = Line(True)
    announce("preparing the runs")
    here = workers_of(Here(line), fitted, run.config)
    announce(f"proposing {CANDIDATES} candidates")
    members = [elite.text for elite in run.archive().members()]
    _proposed(here, members[:1])  # compiles functions that are not cached
    begun = time.process_time()
    texts = _proposed(here, members)
    proposal_ms = 1e3 * (time.process_time() - begun) / len(texts)
    announce(f"assessing {len(texts)} candidates")
    here.assess(0, texts[0], NO_LIMITS).result()  # compiles functions that are not cached
    verdicts = [here.assess(0, text, NO_LIMITS).result() for text in texts]
    stages: Counter[str] = Counter()
    for _, seconds in verdicts:
        stages.update(seconds)
    stage_ms = {name: 1e3 * seconds / len(texts) for name, seconds in stages.items()}
    announce("replaying the assessed programs")
    scored = [complete(verdict.program) for verdict, _ in verdicts if isinstance(verdict, Scored)]
    data = score_set(fitted, run.config.score.arrival_seeds[:1])
    error_rows(scored[0], data)
    begun = time.process_time()
    for program in scored:
        error_rows(program, data)
    replay_ms = 1e3 * (time.process_time() - begun) / len(scored)
    per_s = {}
    for count in WORKERS:
        announce(f"assessing them with {count} {'workers' if count > 1 else 'worker'}")
        pool = LocalPool(count, line)
        try:
            per_s[count] = _per_second(workers_of(pool, fitted, run.config), texts)
        finally:
            pool.close()
    replays = sum(stage_ms.values()) / replay_ms
    return CandidateCost(len(texts), len(fitted), stage_ms, proposal_ms, replay_ms, replays, per_s)


def _proposed(here: Workers, parents: Sequence[str]) -> list[str]:
    """The texts of the first offline proposals, each of two members drawn by its own stream."""
    weights = operator_weights({})
    chosen = []
    for i in range(CANDIDATES):
        rng = stream(PROPOSALS, i)
        first, second = (parents[k] for k in rng.integers(len(parents), size=2))
        chosen.append((first, second, rng))
    return [changed.text for changed in here.propose(0, chosen, weights).result()]


def _per_second(workers: Workers, texts: Sequence[str]) -> float:
    """The number of candidates that the workers assess per second, once all of them are ready."""
    for waiting in [workers.assess(0, texts[0], NO_LIMITS) for _ in range(2 * max(WORKERS))]:
        waiting.result()
    begun = time.perf_counter()
    for waiting in [workers.assess(0, text, NO_LIMITS) for text in texts]:
        waiting.result()
    return len(texts) / (time.perf_counter() - begun)


def long_trace(size: int, bound: Bound) -> LongTrace:
    """The replay of one trace of `size` requests: distinct prompts of 566 tokens, 250 tokens of output."""
    rng = stream(SEED, size)
    arrival = np.cumsum(rng.exponential(EVERY_US, size)).astype(np.int64)
    alone, zeros = np.full(size, -1, np.int32), np.zeros(size, np.int32)
    deadline = np.zeros(size, np.int64)
    requests = Requests(arrival, zeros, zeros + 566, zeros + 250, alone, alone, zeros, deadline)
    limits = EngineLimits(max_seqs=128, budget=2048, threshold=0, block=16, blocks=27_000)
    begun = time.perf_counter()
    replay = replay_bound(Load(requests, limits), bound)
    return LongTrace(size, time.perf_counter() - begun, replay.steps, replay.run.fast, peak_mib())


def machine() -> dict[str, str]:
    """The processor, and the versions of Python, numba and numpy."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return {"cpu": name, "python": platform.python_version(), "numba": version("numba"), "numpy": version("numpy")}


def peak_mib() -> float:
    """The peak memory of this process, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 2**20


def now_mib() -> float:
    """The memory of this process, MiB; its peak where the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    return peak_mib()


def print_bench(result: Benchmark) -> None:
    """Print the figures as tables and a few lines."""
    m = result.machine
    rows = []
    for name, ms in result.replay_ms.items():
        fast = f"{result.fast[name]} of 12" if name in result.fast else "-"
        ratio = number(result.ratio_to_compiled.get(name), 2, signed=False)
        rows.append([name, f"{ms:.2f}", ratio, f"{ms / result.steps_of[name] * 1e6:.1f}", fast])
    title = f"{result.requests:,} requests, {result.steps:,} steps, one core of {m['cpu']}, Python {m['python']}"
    show(Table.of(title, [words("12 clean runs"), figures("", "ms", "of compiled", "ns/step", "fast clock")], rows))
    rows = [
        [f"{t.requests:,}", f"{t.seconds:.3f}", f"{t.seconds / t.requests * 1e6:.3f}", f"{t.peak_mib:.0f}"]
        for t in result.scaling
    ]
    show(Table.of("One trace", [figures("", "requests", "seconds", "us/request", "peak MiB")], rows))
    print_candidate(result.candidate)
    growth = f"memory over {TEXTS:,} of them: {result.memory_growth_mib:+.1f} MiB"
    prose(f"A new text: {result.candidate_ms:.3f} ms; {growth}")
    rates = f"{result.requests_per_s:,.0f} requests/s, {result.steps_per_s:,.0f} steps/s (affine)"
    prose(f"{rates}; peak memory {result.peak_mib:.0f} MiB")


def print_candidate(cost: CandidateCost) -> None:
    """Print a row for each stage of a candidate's assessment, and the number of candidates per second."""
    stages = {**cost.stage_ms, "all stages": sum(cost.stage_ms.values()), "making a proposal": cost.proposal_ms}
    rows = [[name, f"{ms:.1f}", f"{ms / cost.replay_ms:.2f}"] for name, ms in stages.items()]
    title = f"{cost.candidates} candidates on {cost.runs} runs; a replay of these takes {cost.replay_ms:.1f} ms"
    show(Table.of(title, [words("CPU of a candidate"), figures("", "ms", "replays")], rows))
    one, two = cost.candidates_per_s[1], cost.candidates_per_s[2]
    prose(f"{one:.1f} candidates/s with one worker, {two:.1f} with two: {two / one:.2f} times as many")
