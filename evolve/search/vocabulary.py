"""The parts of new terms: the allowed fields, their typical sizes, and products that scale a cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from simulator.clock.fields import Active, BatchFields
from simulator.language.evaluate import value
from simulator.language.ir import Expr, Field, walk
from simulator.language.opcodes import formula
from simulator.schema import FIELDS, KERNELS, PAPER18, PHASES, marked
from simulator.serving.experiment import Experiment
from simulator.serving.facts import Facts
from simulator.serving.workload import Profile, Workload, output_lengths, prompt_lengths


def _names(mark: str) -> frozenset[str]:
    return frozenset(f.name for f in marked(mark))


# Deployment fields that scale a cost: launches per layer, steps of a reduction, rows of a vocabulary, ...
_SCALES = tuple(f.name for f in sorted((f for f in FIELDS.values() if f.scale), key=lambda f: f.scale))
# Products of deployment fields that scale the cost of one layer, one rank or one sampled row.
_PAIRS = (
    *(("layers", "tp_log2"), ("layers", "is_moe"), ("vocab", "sampling_sort"), ("vocab", "repetition_penalty")),
    *(("layers", "hidden"), ("experts", "layers"), ("layers", "is_fp8"), ("moe_layers", "is_fp8")),
)
# A user's program may read the limits and switches of the engine; proposals do not.
_NO_COST = _names("no_cost")
_UNUSED = _NO_COST | {"reference_step_us"}
_NOT_QUEUEING = _names("step_only") | _NO_COST
# With measured kernels, a correction multiplies at most one count of the batch, one size and any switches; or a kernel
# and switches.
SIZES = _names("size")
SWITCHES = _names("switch")
STEP_SWITCHES = ("uncaptured", "mixed")  # of the batch
# The kernels whose sum is a step.
SUMMED_KERNELS = tuple(f.name for f in walk(formula("kernel_us")) if isinstance(f, Field))
# The fields offered where kernels are measured: what the kernels leave out or may get wrong. These are requests, prompt
# chunks, contexts, experts shared by similar prompts, launches, the sampler, and the format of the weights. Kernels
# already include datasheet times, tokens and matrix sizes: proposals that add them again learn the models, not the law.
# (Most prompts of the shipped runs are cached, so a time per token hardly shows.)
_WITH_KERNELS = {*_names("correction"), *SUMMED_KERNELS, *SIZES, *SWITCHES}
# The same for queueing_time: the request's way through the server, and the steps that it waits for.
_QUEUEING_WITH_KERNELS = _names("queueing")
# Prompt lengths that differ by less than this factor do not determine a time per prompt token.
_LEAST_SPREAD = 4.0
ADJUSTING = 0.5  # share of the corrections in step_time that adjust a kernel where switches are 1
_MEASURED = frozenset(f"b.{name}" for name in KERNELS)
# The field that divides a quantity of each unit to a pure number.
_NORMS = {f.unit: Field(f.scope, f.name) for f in marked("norm")}


@dataclass(frozen=True)
class Vocabulary:
    """The fields that each method may read, and the products of deployment fields (`scales`) that scale a cost.

    `typical` is the size of each field on a typical batch, for start values. `norms` are the fields that divide others
    to pure numbers. `measured`: True if the fields of measured kernels are included.
    """

    step: tuple[Field, ...]
    queueing: tuple[Field, ...]
    scales: tuple[tuple[Field, ...], ...]
    typical: dict[tuple[str, str], float]
    norms: tuple[Field, ...]
    measured: bool

    def fields(self, method: str) -> tuple[Field, ...]:
        return self.step if method == "step_time" else self.queueing

    def size(self, node: Expr, constants: dict[str, float]) -> float:
        """The value of an expression on the typical batch."""
        return value(node, constants, self.typical)

    def alike(self, field: Field, method: str) -> list[Field]:
        """Other fields of the same object and unit."""
        unit = FIELDS[field.scope, field.name].unit
        others = (f for f in self.fields(method) if f != field and f.scope == field.scope)
        return [f for f in others if FIELDS[f.scope, f.name].unit == unit]

    def norm(self, field: Field) -> Field | None:
        """The field that divides this one to a pure number; None if there is none, or it is this field."""
        norm = _NORMS.get(FIELDS[field.scope, field.name].unit)
        return norm if norm is not None and norm != field and norm in self.norms else None

    def basis(self, method: str, rng: np.random.Generator) -> list[Expr]:
        """Factors of a new term: none (for a constant), a field, a scale, or a field and a scale.

        If kernels are measured, they make a correction instead.
        """
        if self.measured:
            return self._correction(method, rng)
        fields = [f for f in self.fields(method) if method == "queueing_time" or f.scope == "b"]
        times = [f for f in fields if FIELDS[f.scope, f.name].unit == "us"]
        kind = rng.random()
        scale = self.scales[rng.integers(len(self.scales))] if self.scales else ()
        choices = times if times and rng.random() < 0.5 else fields
        chosen = choices[rng.integers(len(choices))] if choices else None
        if chosen is None or (kind < 0.3 and scale):
            return list(scale)
        if kind < 0.7 or not scale:
            return [chosen]
        return [*scale, chosen]

    def every(self, method: str) -> list[list[Expr]]:
        """The factors of every term that `basis` may draw, each once, in a fixed order; first of a constant: none."""
        scales = [list(scale) for scale in self.scales]
        if method == "queueing_time":
            singles = [scale for scale in scales if len(scale) == 1] if self.measured else scales
            fields = [[f] for f in self.queueing]
            if self.measured:
                alone, (_, _, switches) = [*fields, *singles], self._of_corrections()
                where = [[*field, switch] for field in alone for switch in switches if switch not in field]
                return _each_once([[], *alone, *where])
            return _each_once([[], *fields, *singles, *([*s, *f] for s in scales for f in fields if not self.measured)])
        batch = [f for f in self.step if f.scope == "b"]
        if not self.measured:
            return _each_once([[], *([f] for f in batch), *scales, *([*s, f] for s in scales for f in batch)])
        counts, sizes, switches = self._of_corrections()
        kernels = [f for f in batch if f.name in SUMMED_KERNELS]
        of_step = [f for f in batch if f.name in STEP_SWITCHES]
        choices = ([None, *kind] for kind in (counts, sizes, switches, of_step))
        adjusting = [
            [kernel, *(f for f in chosen if f)]
            for kernel in kernels
            for chosen in product([None, *switches], [None, *of_step])
            if any(chosen)
        ]
        return _each_once([*([f for f in chosen if f] for chosen in product(*choices)), *adjusting])

    def _of_corrections(self) -> tuple[list[Field], list[Field], list[Field]]:
        """The counts, sizes and switches of which a correction in step_time has at most one each."""
        scales = [scale[0] for scale in self.scales if len(scale) == 1]
        batch = [f for f in self.step if f.scope == "b"]
        counts = [f for f in batch if f.name not in (*KERNELS, *STEP_SWITCHES)]
        sizes, switches = ([f for f in scales if f.name in names] for names in (SIZES, SWITCHES))
        return counts, sizes, switches

    def _correction(self, method: str, rng: np.random.Generator) -> list[Expr]:
        """Factors of a correction.

        In step_time it is a kernel where one or two switches are 1, or a product of at most a count, a size and
        switches. In queueing_time it is one field, perhaps where a switch is 1.
        """
        scales = [scale[0] for scale in self.scales if len(scale) == 1]
        _, _, switches = self._of_corrections()

        def some(kind: Sequence[Field], chance: float) -> list[Field]:
            return [kind[int(rng.integers(len(kind)))]] if kind and rng.random() < chance else []

        if method == "queueing_time":
            fields = list(dict.fromkeys((*self.queueing, *scales)))
            chosen = some(fields, 1.0)
            return [*chosen, *(f for f in some(switches, 0.3) if f not in chosen)]
        batch = [f for f in self.step if f.scope == "b"]
        of_step = [f for f in batch if f.name in STEP_SWITCHES]
        if rng.random() < ADJUSTING:
            where = [*some(switches, 0.7), *some(of_step, 0.5)] or some(switches, 1.0)
            return [*some([f for f in batch if f.name in SUMMED_KERNELS], 1.0), *where] if where else []
        counts, sizes, _ = self._of_corrections()
        return [*some(counts, 0.6), *some(sizes, 0.6), *some(switches, 0.6), *some(of_step, 0.2)]


def _each_once(terms: Sequence[Sequence[Expr]]) -> list[list[Expr]]:
    return [list(term) for term in dict.fromkeys(map(tuple, terms))]


def vocabulary(experiments: Sequence[Experiment], allowed: str) -> Vocabulary:
    """The vocabulary for these experiments under the field set `allowed` (see `field_set`)."""
    measured = allowed == "all"
    names = field_set(allowed)
    offered = [Field(scope, name) for scope, name in FIELDS if names is None or f"{scope}.{name}" in names]
    facts = [dict(e.facts) for e in experiments]
    mean = {name: float(np.mean([f[name] for f in facts])) for name in facts[0]}
    # a switch that is on in all runs is a constant by another name
    present = {name for name, size in mean.items() if size and not (name in SWITCHES and size == 1.0)}
    step = tuple(
        f
        for f in offered
        if (not measured or f.name in _WITH_KERNELS) and f.scope in "bs" and f.name not in _UNUSED
        if f.name not in SWITCHES or f.name in present
    )
    queueing = tuple(
        Field(s, n)
        for (s, n), f in FIELDS.items()
        if s == "r" or (s == "s" and (f.unit == "us" or f.scale) and n not in _NOT_QUEUEING)
    )
    if measured:
        lengths = np.concatenate([prompt_lengths(e.workload) for e in experiments])
        spread = lengths.max() >= _LEAST_SPREAD * lengths.min()
        queueing = tuple(f for f in queueing if f.name in _QUEUEING_WITH_KERNELS and (f.scope == "s" or spread))
    usable = {f.name for f in step if f.scope == "s"} & present
    products = [names for names in (*((name,) for name in _SCALES), *_PAIRS) if usable.issuperset(names)]
    scales = tuple(tuple(Field("s", name) for name in names) for names in products)
    norms = tuple(f for f in offered if f in _NORMS.values())
    return Vocabulary(step, queueing, scales, _typical(experiments, mean, measured), norms, measured)


def _typical(experiments: Sequence[Experiment], mean: dict[str, float], measured: bool) -> dict[tuple[str, str], float]:
    """Every field's value on a typical batch: 48 decodes and one prefill, on a deployment of mean facts.

    Fields of measured kernels are included if `measured`; they are looked up for the model of median size.
    """
    context = float(np.mean([_context(e.workload) for e in experiments]))
    batch = [Active(512, max(int(context), 513) + i, 1) for i in range(48)] + [Active(600, 592, 8)]
    middle = sorted(experiments, key=lambda e: e.facts["model_params_b"])[len(experiments) // 2]
    fields = BatchFields(batch, Facts({**mean, "reference_step_us": 1e4}, middle.facts.deployed))
    typical = {(scope, name): fields[scope, name] for scope, name in fields if measured or name not in KERNELS}
    typical["r", "input_len"] = context
    return typical


def _context(workload: Workload) -> float:
    """Tokens of context of a typical decode: a prompt, and half an answer."""
    load, answer = workload.source, float(output_lengths(workload).mean())
    if isinstance(load, Profile) and load.question_len.fixed is not None:
        return load.system_prompt_len + load.question_len.fixed + answer / 2
    return float(prompt_lengths(workload).mean()) + answer / 2


def field_set(name: str) -> frozenset[str] | None:
    """The fields that step_time may read under a field set of the configuration.

    None means all of them; `datasheet` means all but measured kernels, `phases` the six analytic components alone.
    """
    if name == "paper18":
        return PAPER18
    if name == "phases":
        return PHASES
    if name == "components":
        return frozenset(f"{s}.{n}" for (s, n), f in FIELDS.items() if f.unit == "us" and s in "bs") - _MEASURED
    if name == "datasheet":
        return frozenset(f"{s}.{n}" for s, n in FIELDS) - _MEASURED
    return None
