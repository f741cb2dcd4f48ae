"""What offline proposals build terms from: the allowed fields, how large they typically are, and physical bases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evolve.propose.terms import US, product
from simulator.experiment.experiment import Experiment
from simulator.experiment.facts import Facts
from simulator.experiment.workload import prompt_lengths
from simulator.fields import Active, BatchFields
from simulator.language import units
from simulator.language.evaluate import value
from simulator.language.infer import unit_of
from simulator.language.ir import Constant, Expr, Field, walk
from simulator.language.opcodes import formula
from simulator.schema import FIELDS, KERNELS, PAPER18

# Deployment fields that scale a cost: launches a layer, steps of a reduction, rows of a vocabulary, ...
_SCALES = (
    "layers", "moe_layers", "dense_layers", "tp_log2", "hidden", "heads", "kv_heads_per_gpu", "vocab", "is_moe",
    "is_fp8", "sampling_sort", "repetition_penalty", "active_experts", "tp",
)  # fmt: skip
# Products of deployment fields that one layer, one rank or one sampled row costs.
_PAIRS = (("layers", "tp_log2"), ("layers", "is_moe"), ("vocab", "sampling_sort"), ("vocab", "repetition_penalty"),
          ("layers", "hidden"), ("experts", "layers"), ("layers", "is_fp8"), ("moe_layers", "is_fp8"))  # fmt: skip
# Limits and switches of the engine: they bound what a batch can be but cost no time of their own, and in the shipped
# runs they are constant or confounded with the file. A user's program may read them; offline proposals do not.
_NO_COST = ("kv_blocks", "kv_cpu_offload", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
# Beside measured kernels a correction is one of these sizes, or none, and any of these switches, times one count of the
# batch, or none.
SIZES = ("layers", "moe_layers", "tp_log2")
SWITCHES = ("is_moe", "is_fp8", "sampling_sort", "repetition_penalty")
# The kernels whose sum is a step.
PARTS = tuple(f.name for f in walk(formula("kernel_us")) if isinstance(f, Field))
# These may take as long again in steps without a captured graph: they are launches, many and small, which the host must
# then make one by one. Matrix products and attention were measured without a graph.
EAGER = ("kernel_elementwise_us", "kernel_moe_us", "kernel_moe_quantized_us")
# What is offered there: what kernels leave out or may be wrong about. Requests, prompt chunks, contexts, the experts
# that alike prompts share, launches a layer and those without a captured graph, the sampler, the format of the weights.
# Datasheet times, tokens and the sizes of a model's matrices are inside the kernels already: proposals that add them
# again learn models, not the law. (Most prompts of the shipped runs are cached, which hardly shows a time per token.)
_BESIDE_KERNELS = (
    *("batch_size", "prefill_reqs", "kv_decode_sum", "experts_fraction"),
    "uncaptured",
    *PARTS,
    *SIZES,
    *SWITCHES,
)
# And before the queue: the request's way through the server, and the steps that it waits for.
_QUEUE_BESIDE_KERNELS = ("reference_step_us", "tp_log2", "input_len")
# Prompts whose lengths differ by less than this factor do not determine a time per prompt token.
_LEAST_SPREAD = 4.0
_MEASURED = frozenset(f"b.{name}" for name in KERNELS)
# What normalises a quantity to a pure number, by unit.
_NORMS = {"request": ("s", "max_num_seqs"), "token": ("s", "max_num_batched_tokens"), "us": ("s", "weights_us")}


@dataclass(frozen=True)
class Vocabulary:
    """Fields by method; `typical` is each field's size on a typical batch, for start values; `measured`: whether the
    fields of measured kernels are among them."""

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
        """Other fields of the same unit and object."""
        unit = FIELDS[field.scope, field.name].unit
        return [f for f in self.fields(method)
                if f != field and f.scope == field.scope and FIELDS[f.scope, f.name].unit == unit]  # fmt: skip

    def norm(self, field: Field) -> Field | None:
        """The field that divides this one to a pure number, if there is one and it is another field."""
        scope_name = _NORMS.get(FIELDS[field.scope, field.name].unit)
        norm = Field(*scope_name) if scope_name else None
        return norm if norm is not None and norm != field and norm in self.norms else None

    def basis(self, method: str, rng: np.random.Generator) -> list[Expr]:
        """Factors of a new term: nothing (a constant), a field, a scale, or a field times a scale. Beside measured
        kernels it is one of them, or a correction."""
        if self.measured:
            return self._correction(method, rng)
        fields = [f for f in self.fields(method) if method == "queueing_time" or f.scope == "b"]
        timed = [f for f in fields if FIELDS[f.scope, f.name].unit == "us"]
        kind = rng.random()
        scale = self.scales[rng.integers(len(self.scales))] if self.scales else ()
        field = (timed if timed and rng.random() < 0.5 else fields)[:]
        chosen = field[rng.integers(len(field))] if field else None
        if chosen is None or (kind < 0.3 and scale):
            return list(scale)
        if kind < 0.7 or not scale:
            return [chosen]
        return [*scale, chosen]

    def _correction(self, method: str, rng: np.random.Generator) -> list[Expr]:
        """A correction of step_time: a kernel once more in steps without a captured graph, or a count, a size and a
        switch. Of queueing_time: one field."""
        scales = [scale[0] for scale in self.scales if len(scale) == 1]
        if method == "queueing_time":
            fields = list(dict.fromkeys((*self.queueing, *scales)))
            return [fields[rng.integers(len(fields))]] if fields else []
        batch = [f for f in self.step if f.scope == "b"]
        eager = [f for f in batch if f.name in EAGER]
        if eager and rng.random() < 0.1:
            return [Field("b", "uncaptured"), eager[rng.integers(len(eager))]]
        counts = [f for f in batch if f.name not in (*KERNELS, "uncaptured")]
        sizes, switches = ([f for f in scales if f.name in names] for names in (SIZES, SWITCHES))
        kinds = (kind for kind in (counts, sizes, switches) if kind and rng.random() < 0.6)
        return [kind[rng.integers(len(kind))] for kind in kinds]


def vocabulary(experiments: Sequence[Experiment], allowed: str) -> Vocabulary:
    """The words for these experiments; `allowed` is a field set of the configuration (see `field_set`)."""
    names = field_set(allowed)
    offered = [Field(scope, name) for scope, name in FIELDS if names is None or f"{scope}.{name}" in names]
    facts = [dict(e.facts) for e in experiments]
    mean = {name: float(np.mean([f[name] for f in facts])) for name in facts[0]}
    context = float(np.mean([e.workload.system_prompt_len + e.workload.question_len + e.workload.output_len / 2
                             for e in experiments]))  # fmt: skip
    batch = [Active(512, max(int(context), 513) + i, 1) for i in range(48)] + [Active(600, 592, 8)]
    middle = sorted(experiments, key=lambda e: e.facts["model_params_b"])[len(experiments) // 2]
    whole = Facts({**mean, "reference_step_us": 1e4}, middle.facts.deployed)
    typical = dict(_known(BatchFields(batch, whole), names))
    typical["r", "input_len"] = context
    present = {name for name, size in mean.items() if size}
    everything = [f for f in offered if allowed != "all" or f.name in _BESIDE_KERNELS]
    norms = tuple(f for f in offered if (f.scope, f.name) in _NORMS.values())
    step = tuple(
        f for f in everything if f.scope == "b" or (f.scope == "s" and f.name not in (*_NO_COST, "reference_step_us"))
    )
    queueing = tuple(
        Field(s, n) for s, n in FIELDS
        if s == "r" or (s == "s" and (FIELDS[s, n].unit in ("us",) or n in _SCALES) and n not in ("heads", "vocab"))
    )  # fmt: skip
    if allowed == "all":
        lengths = np.concatenate([prompt_lengths(e.workload) for e in experiments])
        spread = lengths.max() >= _LEAST_SPREAD * lengths.min()
        queueing = tuple(f for f in queueing if f.name in _QUEUE_BESIDE_KERNELS and (f.scope == "s" or spread))
    scales = tuple((Field("s", n),) for n in _SCALES if Field("s", n) in step and n in present) + tuple(
        (Field("s", a), Field("s", b)) for a, b in _PAIRS
        if Field("s", a) in step and Field("s", b) in step and {a, b} <= present
    )  # fmt: skip
    return Vocabulary(step, queueing, scales, typical, norms, allowed == "all")


def _known(fields: BatchFields, names: frozenset[str] | None) -> Iterator[tuple[tuple[str, str], float]]:
    """The fields of a set with their values; without one, those of measured kernels too."""
    for scope, name in fields:
        if names is None or name not in KERNELS:
            yield (scope, name), fields[scope, name]


def field_set(name: str) -> frozenset[str] | None:
    """The fields step_time may read under a field set: None for all of them, `datasheet` all but measured kernels."""
    if name == "paper18":
        return PAPER18
    if name == "components":
        return frozenset(f"{s}.{n}" for (s, n), f in FIELDS.items() if f.unit == "us" and s in "bs") - _MEASURED
    if name == "datasheet":
        return frozenset(f"{s}.{n}" for s, n in FIELDS) - _MEASURED
    return None


def coefficient_unit(basis: Sequence[Expr], constants: Mapping[str, Constant]) -> units.Unit | None:
    """The unit that makes `coefficient * basis` microseconds; None where a wildcard leaves it open."""
    if not basis:
        return US
    unit = unit_of(product(basis), constants)
    return None if unit is None else units.over(US, unit)
