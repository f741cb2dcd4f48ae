"""`evolve kernels`: where the time of a step goes on one deployment, operation by operation, from measured kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.judge.physics import roofline_us
from evolve import __version__
from evolve.output.columns import figures, words
from evolve.output.printing import ROWS, fits, more, note, prose, show
from evolve.output.table import Row, Table, row, section
from simulator.clock.fields import Active, BatchFields
from simulator.common.errors import InputError, Section
from simulator.common.json import JsonObject
from simulator.common.knots import curve
from simulator.common.text import counted
from simulator.kernels.curves import Operation, kernels
from simulator.kernels.roofline import DATASHEET, LAUNCH_US
from simulator.kernels.tables import names, tables
from simulator.language.evaluate import value
from simulator.language.opcodes import formula
from simulator.schema import FIELDS
from simulator.serving.deployment import GIB, deployment_facts, weights_bytes
from simulator.serving.engine import Setting
from simulator.serving.facts import Facts, omitted
from simulator.serving.gpu import known_gpu, measured_gpus
from simulator.serving.known import model_config
from simulator.serving.model import Model
from simulator.serving.spec import engine_of

DECODES = (1, 8, 32, 128)
PREFILL = 2048  # tokens of an uncached prompt, the engine's default budget of a step
SHARES_AT = DECODES.index(32)  # the step whose shares and bounds are in the table
_FIELD = {f.curve: f.name for f in FIELDS.values() if f.curve}
# The batch field that a curve's value is multiplied by, and the name of the product.
_QUANTITY = {f.curve: f.times.removeprefix("b.") for f in FIELDS.values() if f.times}
# Curves whose bound includes no kernel launch; all others include LAUNCH_US.
_NO_LAUNCH = frozenset(("elementwise", "small", "decode_per_token", "window_per_token", "prefill_per_pair", "sampler"))
LEGEND = """\
us: all calls of a step together; 1 to {most}: decodes; prefill: an uncached prompt of {prefill:,} tokens.
share: at {decodes} decodes. {datasheet}roofline: bytes over bandwidth or FLOPs over peak, whichever is longer, of the
whole step at once, without all-reduces.
from: measured (this shape was timed), interpolated (between timed shapes), nearest shape (the efficiency of the closest
one), datasheet (never timed: bytes over bandwidth, or a launch); then octaves to the closest timed size, 1 being half
or twice; the sampler's operations are counted, at the speed at which its sort was timed. CPU time is not included."""

BOUND = "datasheet: the roofline of one operation at {decodes} decodes, no launches. "


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A batch of decodes with `context` tokens in the KV cache each, or one whole prompt of `prefill` tokens."""

    decodes: int
    context: int
    prefill: int

    @property
    def name(self) -> str:
        return f"prefill {self.prefill}" if self.prefill else counted(self.decodes, "decode")

    def to_json(self) -> JsonObject:
        about = {"decodes": self.decodes, "context": self.context, "prefill_tokens": self.prefill}
        return {"name": self.name, **about}

    @property
    def batch(self) -> tuple[Active, ...]:
        if self.prefill:
            return (Active(self.prefill, 0, self.prefill),)
        return (Active(0, self.context, 1),) * self.decodes


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """An operation: us of all its calls in every step, and the datasheet's bound for them, without launches."""

    operation: Operation
    us: tuple[float, ...]
    datasheet_us: tuple[float, ...]

    @property
    def name(self) -> str:
        return self.operation.name

    def to_json(self, total_us: Sequence[float]) -> JsonObject:
        o = self.operation
        return {
            "name": self.name,
            "curve": o.curve,
            "calls": o.calls,
            "shape": o.shape,
            "provenance": o.timing.kind,
            "kernel": o.timing.kernel,
            "off_grid_octaves": o.timing.off_grid,
            "us": list(self.us),
            "share": [us / all_us for us, all_us in zip(self.us, total_us, strict=True)],
            "datasheet_us": list(self.datasheet_us),
        }


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The operations of a deployment over `steps`; roofline_us is the datasheet's bound of each step as a whole."""

    model: str
    hardware: str
    tables: str
    tp: int
    settings: JsonObject  # of the engine: the other ones that were given
    weights: Mapping[str, str]  # the type of each part of the model
    kv_bytes: float  # of an element of the KV cache
    held_gib: float  # by the weights on each GPU
    kv_tokens: int  # that a rank's KV cache has room for
    steps: tuple[KernelStep, ...]
    rows: tuple[OperationTimes, ...]
    roofline_us: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def total_us(self) -> tuple[float, ...]:
        """The time of each step, all operations together."""
        return tuple(sum(times.us[i] for times in self.rows) for i in range(len(self.steps)))

    def to_json(self) -> JsonObject:
        about, total = tables(self.tables).about, self.total_us
        return {
            "engine": __version__,
            "model": self.model,
            "hardware": self.hardware,
            "tp": self.tp,
            "settings": self.settings,
            "weights": dict(self.weights),
            "kv_cache_bits": 8 * self.kv_bytes,
            "weights_gib_per_gpu": self.held_gib,
            "kv_cache_tokens": self.kv_tokens,
            "tables": {name: about[name] for name in ("gpu", "source", "sha256", "license", "copyright", "changes")},
            "steps": [
                step.to_json() | {"kernels_us": us, "roofline_us": bound_us}
                for step, us, bound_us in zip(self.steps, total, self.roofline_us, strict=True)
            ],
            "operations": [times.to_json(total) for times in self.rows],
            "notes": list(self.notes),
        }


def breakdown(model: str, hardware: str, tp: int, context: int, settings: Mapping[str, Setting]) -> Breakdown:
    """Where the time of five steps goes: four numbers of decodes at `context` tokens each, and an uncached prompt.

    `model` is a shipped name, a config.json or its folder; `settings` are other ones of the engine. Raises InputError
    for an unknown model or GPU, a GPU without measured kernels, and what no engine can run.
    """
    config, gpu = model_config(model), known_gpu(hardware, f"--hardware {hardware}")
    if not gpu.kernels:
        raise InputError(f"--hardware {hardware}: has no measured kernels: choose one of {', '.join(_measured())}")
    where = f"MODEL {model} --tp {tp}"
    longest = context + PREFILL  # a config.json may not give a length
    engine = engine_of(Section(where, "engine", {"tensor_parallel": tp, "max_model_len": longest, **settings}))
    of = Model.of(config, where)
    facts = deployment_facts(of, gpu, engine, where)
    steps = (*(KernelStep(n, context, 0) for n in DECODES), KernelStep(0, 0, PREFILL))
    deployed = facts.deployed
    assert deployed is not None
    rows = tuple(_row(o, steps, facts) for o in kernels(deployed).operations)
    bounds = tuple(roofline_us(step.batch, facts) for step in steps)
    notes = _notes(steps, facts, "generation_config" in config)
    a, given = deployed.architecture, dict(settings)
    weights = {part: stored.name for part, stored in a.stored.items()}
    held, room = weights_bytes(of, a, engine) / GIB, int(facts["kv_blocks"] * facts["block_size"])
    return Breakdown(
        model, gpu.name, deployed.gpu.tables, tp, given, weights, a.kv_bytes, held, room, steps, rows, bounds, notes
    )


def _measured() -> list[str]:
    """The GPUs that have measured kernels, by their names in the hardware table."""
    return sorted(gpu.name for gpu in measured_gpus() if gpu.kernels in names())


def _row(operation: Operation, steps: tuple[KernelStep, ...], facts: Facts) -> OperationTimes:
    timing, name = operation.timing, operation.curve
    launch = 0.0 if name in _NO_LAUNCH else LAUNCH_US
    us, bound = [], []
    for step in steps:
        fields = BatchFields(step.batch, facts)
        at = value(formula(_FIELD[name]), {}, fields)
        times = operation.calls * (fields["b", _QUANTITY[name]] if name in _QUANTITY else 1.0)
        us.append(times * _at(timing.us, at))
        bound.append(times * max(_at(timing.bound_us, at) - launch, 0.0))
    return OperationTimes(operation, tuple(us), tuple(bound))


def _at(knots: np.ndarray, x: float) -> float:
    return float(curve(np.concatenate([[float(len(knots))], knots]), 0, x))


def _notes(steps: tuple[KernelStep, ...], facts: Facts, sampling: bool) -> tuple[str, ...]:
    """Notes on approximations of this model, and on steps for which the deployment's KV cache has no room."""
    room = int(facts["kv_blocks"] * facts["block_size"])
    short = [s for s in steps if s.decodes * (s.context + 1) > room]
    notes = list(omitted(facts))
    if not sampling:
        notes.append("no generation_config in the configuration: neither sort nor penalties are in the sampler")
    for s in short:
        requests = f"{room:,} tokens, {room // (s.context + 1)} such requests"
        notes.append(f"{s.name} at {s.context:,} tokens of context: the KV cache has room for {requests}")
    return tuple(notes)


def print_kernels(breakdown: Breakdown, explain: bool = False, verbose: bool = False) -> None:
    """Print operations by steps; calls, shapes and kernels if the terminal is wide enough; terms if `explain`.

    verbose: all columns, however narrow the terminal is.
    """
    table = _table(breakdown, wide=True)
    about = tables(breakdown.tables).about
    wide = fits(table)
    left = show(table if wide else _table(breakdown, wide=False), None if verbose else ROWS)
    stored = ", ".join(f"{part} {name}" for part, name in breakdown.weights.items())
    cache = f"KV cache of {8 * breakdown.kv_bytes:.0f} bits with room for {breakdown.kv_tokens:,} tokens"
    prose(f"Weights: {stored}; {breakdown.held_gib:,.1f} GiB on each GPU. {cache}.")
    if not wide:
        prose(f"Kernels: {_kernels_in_words(breakdown)}.")
    if explain:
        datasheet = BOUND.format(decodes=DECODES[SHARES_AT]) if wide else ""
        note(LEGEND.format(most=DECODES[-1], prefill=PREFILL, decodes=DECODES[SHARES_AT], datasheet=datasheet))
    prose(f"Tables: {about['source']}, {about['gpu']}, {about['license']}, {about['copyright']}")
    for text in breakdown.notes:
        prose(f"Note: {text}.")
    more(left, explain)


def _kernels_in_words(breakdown: Breakdown) -> str:
    """Every measured kernel, with the operations that it times."""
    operations: dict[str, dict[str, None]] = {}
    for times in breakdown.rows:
        if times.operation.timing.kind != DATASHEET and any(times.us):
            name = re.split("[:,]", times.name)[0]  # of `feed-forward: down`
            operations.setdefault(times.operation.timing.kernel, {})[name] = None
    return "; ".join(f"{kernel} ({', '.join(names)})" for kernel, names in operations.items())


def _table(breakdown: Breakdown, wide: bool) -> Table:
    total = breakdown.total_us
    shown = [times for times in breakdown.rows if any(times.us)]  # a single GPU has no all-reduce

    def cells(times: OperationTimes) -> Row:
        o, t = times.operation, times.operation.timing
        origin = f"{t.kind} {t.off_grid:.1f}" if t.off_grid >= 0.05 else t.kind
        share = f"{100 * times.us[SHARES_AT] / total[SHARES_AT]:.1f} %"
        more = [times.datasheet_us[SHARES_AT], o.calls, o.shape, t.kernel] if wide else []
        return row(times.name, *times.us, share, origin, *more)

    bound = [sum(times.datasheet_us[SHARES_AT] for times in shown)] if wide else []
    rows = [
        *section(map(cells, shown)),
        row("sum", *total, "", "", *bound, short=wide),
        row("roofline", *breakdown.roofline_us, short=True),
        row("sum / roofline", *(f"{a / b:.2f}" for a, b in zip(total, breakdown.roofline_us, strict=True)), short=True),
    ]
    names = ("prefill" if s.prefill else str(s.decodes) for s in breakdown.steps)
    columns = [words("operation"), figures(_us, *names), figures("", "share"), words("from")]
    if wide:
        columns += [figures(_us, "datasheet"), figures("d", "calls"), words("shape", "kernel")]
    settings = "".join(f", {name} {value}" for name, value in breakdown.settings.items())
    title = (
        f"{breakdown.model} on {breakdown.hardware}, TP {breakdown.tp}{settings}: us of a step, "
        f"{breakdown.steps[0].context:,} tokens of context a decode"
    )
    return Table.of(title, columns, rows)


def _us(x: float) -> str:
    return f"{x:,.0f}" if x >= 99.95 else f"{x:.1f}"
