"""`evolve kernels`: where the time of a step goes on one deployment, operation by operation, from measured kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluator.deployments import known_gpu, model_config
from evaluator.experiments import hardware_table
from evaluator.judge.physics import roofline_us
from evolve import __version__
from evolve.report.run import console, natural_width, new_table, show
from simulator.errors import InputError
from simulator.experiment.deployment import deployment_facts
from simulator.experiment.experiment import Engine
from simulator.experiment.facts import Facts
from simulator.fields import Active, BatchFields
from simulator.kernels.curves import Operation, kernels
from simulator.kernels.roofline import LAUNCH_US
from simulator.kernels.tables import names, tables
from simulator.knots import curve
from simulator.language.evaluate import value
from simulator.language.opcodes import formula
from simulator.schema import FIELDS

DECODES = (1, 8, 32, 128)
PREFILL = 2048  # tokens of an uncached prompt, the engine's default budget of a step
SHARES_AT = DECODES.index(32)  # the step whose shares and bounds are in the table
_FIELD = {f.curve: f.name for f in FIELDS.values() if f.curve}
# What a curve's value is multiplied by, and what the product is then called.
_QUANTITY = {"decode_per_token": "kv_decode_sum", "prefill_per_pair": "prefill_pairs"}
_NAME = {"decode_per_token": "decode attention: KV cache", "prefill_per_pair": "prefill attention"}
# Operations whose bound has no launch; LAUNCH_US is in those of the others.
_NO_LAUNCH = frozenset(("elementwise", "decode_per_token", "prefill_per_pair", "sampler"))
LEGEND = """\
us: all calls of a step together; 1 to {most}: decodes; prefill: an uncached prompt of {prefill:,} tokens.
share, datasheet: at {decodes} decodes; datasheet is bytes over bandwidth or FLOPs over peak, whichever is longer, no
launches. roofline: the same for the whole step at once, without all-reduces.
from: measured (this shape was timed), interpolated (between timed shapes), nearest shape (the efficiency of the closest
one), datasheet (never timed: bytes over bandwidth, or a launch); then octaves to the closest timed size, 1 being half
or twice; the sampler's operations are counted, at the speed at which its sort was timed. Not here: the CPU."""


@dataclass(frozen=True, slots=True)
class Step:
    """A batch of decodes with `context` tokens in the KV cache each, or one whole prompt of `prefill` tokens."""

    decodes: int
    context: int
    prefill: int

    @property
    def name(self) -> str:
        return f"prefill {self.prefill}" if self.prefill else f"{self.decodes} decode{'s' * (self.decodes > 1)}"

    @property
    def batch(self) -> tuple[Active, ...]:
        if self.prefill:
            return (Active(self.prefill, 0, self.prefill),)
        return (Active(0, self.context, 1),) * self.decodes


@dataclass(frozen=True, slots=True)
class Row:
    """An operation: us of all its calls in every step, and what the datasheet allows them, without launches."""

    operation: Operation
    us: tuple[float, ...]
    datasheet_us: tuple[float, ...]

    @property
    def name(self) -> str:
        return _NAME.get(self.operation.curve, self.operation.name)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The operations of a deployment over `steps`; roofline_us is the datasheet's bound of each step as a whole."""

    model: str
    hardware: str
    tables: str
    tp: int
    steps: tuple[Step, ...]
    rows: tuple[Row, ...]
    roofline_us: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def total_us(self) -> tuple[float, ...]:
        return tuple(sum(row.us[i] for row in self.rows) for i in range(len(self.steps)))


def breakdown(model: str, hardware: str, tp: int, context: int) -> Breakdown:
    """Where the time of five steps goes: some decodes at `context` tokens each, and an uncached prompt.

    `model` is a shipped name, a config.json or its folder. Raises InputError for an unknown model or GPU, a GPU without
    measured kernels, and a `tp` that does not divide the model or leaves it no room.
    """
    config, gpu = model_config(model), known_gpu(hardware, f"--hardware {hardware}")
    if gpu.get("kernels") is None:
        raise InputError(f"--hardware {hardware}: has no measured kernels: choose one of {', '.join(_measured())}")
    engine = Engine(tensor_parallel=tp, max_model_len=context + PREFILL)  # a config.json may not give a length
    facts = deployment_facts(config, gpu, engine, f"MODEL {model} --tp {tp}")
    steps = (*(Step(n, context, 0) for n in DECODES), Step(0, 0, PREFILL))
    deployed = facts.deployed
    assert deployed is not None
    rows = tuple(_row(o, steps, facts) for o in kernels(deployed).operations)
    bounds = tuple(roofline_us(step.batch, facts) for step in steps)
    notes = _notes(steps, facts, "generation_config" in config)
    return Breakdown(model, str(gpu["name"]), deployed.gpu.tables, tp, steps, rows, bounds, notes)


def _measured() -> list[str]:
    """The GPUs that have tables, by the names of the hardware table."""
    return sorted({str(e["name"]) for e in hardware_table().values() if e.get("kernels") in names()})


def _row(operation: Operation, steps: tuple[Step, ...], facts: Facts) -> Row:
    timing, name = operation.timing, operation.curve
    launch = 0.0 if name in _NO_LAUNCH else LAUNCH_US
    us, bound = [], []
    for step in steps:
        fields = BatchFields(step.batch, facts)
        at = value(formula(_FIELD[name]), {}, fields)
        times = operation.calls * (fields["b", _QUANTITY[name]] if name in _QUANTITY else 1.0)
        us.append(times * _at(timing.us, at))
        bound.append(times * max(_at(timing.bound_us, at) - launch, 0.0))
    return Row(operation, tuple(us), tuple(bound))


def _at(knots: np.ndarray, x: float) -> float:
    return float(curve(np.concatenate([[float(len(knots))], knots]), 0, x))


def _notes(steps: tuple[Step, ...], facts: Facts, sampling: bool) -> tuple[str, ...]:
    """What is not known of the model, and steps that the KV cache of the deployment has no room for."""
    room = int(facts["kv_blocks"] * facts["block_size"])
    short = [s for s in steps if s.decodes * (s.context + 1) > room]
    missing: list[str] = []
    if facts.deployed is not None and facts.deployed.architecture.mla_width:
        missing.append("latent attention (MLA): its projections are taken as those of plain attention")
    if not sampling:
        missing.append("no generation_config in the configuration: neither sort nor penalties are in the sampler")
    return *missing, *(
        f"{s.name} at {s.context:,} tokens of context: the KV cache has room for {room:,} tokens, "
        f"{room // (s.context + 1)} such requests"
        for s in short
    )  # fmt: skip


def kernels_json(found: Breakdown) -> dict[str, Any]:
    """The breakdown as plain values, times in us."""
    about = tables(found.tables).about
    total = found.total_us
    return {
        "engine": __version__,
        "model": found.model,
        "hardware": found.hardware,
        "tp": found.tp,
        "tables": {key: about[key] for key in ("gpu", "source", "sha256", "license", "copyright", "changes")},
        "steps": [
            {"name": s.name, "decodes": s.decodes, "context": s.context, "prefill_tokens": s.prefill,
             "kernels_us": total[i], "roofline_us": found.roofline_us[i]}
            for i, s in enumerate(found.steps)
        ],
        "operations": [
            {"name": row.name, "curve": o.curve, "calls": o.calls, "shape": o.shape, "provenance": o.timing.kind,
             "kernel": o.timing.kernel, "off_grid_octaves": o.timing.off_grid, "us": list(row.us),
             "share": [us / all_us for us, all_us in zip(row.us, total, strict=True)],
             "datasheet_us": list(row.datasheet_us)}
            for row in found.rows for o in (row.operation,)
        ],
        "notes": list(found.notes),
    }  # fmt: skip


def print_kernels(found: Breakdown) -> None:
    """The table of operations and steps; calls, shapes and kernels only where the terminal is wide enough for them."""
    out = console()
    table = _table(found, wide=True)
    if out.is_terminal and natural_width(out, table) > out.width:
        table = _table(found, wide=False)
    show(out, table)
    about = tables(found.tables).about
    print(LEGEND.format(most=DECODES[-1], prefill=PREFILL, decodes=DECODES[SHARES_AT]))
    print(f"Tables: {about['source']}, {about['gpu']}, {about['license']}, {about['copyright']}")
    for note in found.notes:
        print(f"Note: {note}.")


def _table(found: Breakdown, wide: bool) -> Any:
    context = found.steps[0].context
    columns = ["prefill" if s.prefill else str(s.decodes) for s in found.steps]
    heads = "|".join(["operation", *(f">{name}" for name in columns), ">share", "from"])
    title = f"{found.model} on {found.hardware}, TP {found.tp}: us of a step, {context:,} tokens of context a decode"
    table = new_table(title, heads + "|>datasheet|>calls|shape|kernel" * wide)
    total = found.total_us
    rows = [row for row in found.rows if any(row.us)]  # a single GPU reduces nothing
    for row in rows:
        t = row.operation.timing
        origin = t.kind + f" {t.off_grid:.1f}" * (t.off_grid >= 0.05)
        cells = [row.name, *map(_us, row.us), f"{100 * row.us[SHARES_AT] / total[SHARES_AT]:.1f} %", origin]
        more = [_us(row.datasheet_us[SHARES_AT]), str(row.operation.calls), row.operation.shape, t.kernel]
        table.add_row(*cells, *more[: len(more) * wide], end_section=row is rows[-1])
    bound = sum(row.datasheet_us[SHARES_AT] for row in rows)
    table.add_row("sum", *map(_us, total), "", "", *[_us(bound)] * wide)
    table.add_row("roofline", *map(_us, found.roofline_us))
    table.add_row("sum / roofline", *(f"{a / b:.2f}" for a, b in zip(total, found.roofline_us, strict=True)))
    return table


def _us(x: float) -> str:
    return f"{x:,.0f}" if x >= 99.95 else f"{x:.1f}"
