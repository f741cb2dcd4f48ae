"""The batch in Go: one pass for the integer sums that are used, and the fields computed from the sums."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.common.errors import InputError
from simulator.language.forest import Forest
from simulator.language.ir import Field, Function, nodes, walk
from simulator.language.opcodes import NO_FOREST, feature, formula, operands
from simulator.schema import CURVES, RAW, READABLE, SPECIAL, TREES
from translate_go.deployment import SETTINGS
from translate_go.lower import GoAtom, GoExpr, Lowering, rounded, show
from translate_go.naming import DEFAULT, BackendName, GoNames, batch_name, columns, comment, curve_name, fact, indented
from translate_go.templates import sections
from translate_go.trees import call_of_trees, declare_trees

_TEXT = sections("source")
ALL, PREFILL, DECODE = "all", "prefill", "decode"


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum over the requests of a phase in Go: `update` adds a request, and reads n (new tokens), progress, prompt."""

    phase: str
    update: str
    meaning: str

    def reads(self, variable: str) -> bool:
        """True if the update reads this variable."""
        return bool(re.search(rf"\b{variable}\b", self.update))


_SUMS = {
    "prefillReqs": _Sum(PREFILL, "s.prefillReqs++", "requests still in their prompt"),
    "decodeReqs": _Sum(DECODE, "s.decodeReqs++", "requests past their prompt"),
    "prefillTokens": _Sum(PREFILL, "s.prefillTokens += n", "new prompt tokens"),
    "maxPrefillChunk": _Sum(PREFILL, "s.maxPrefillChunk = max(s.maxPrefillChunk, n)", "largest prompt chunk, tokens"),
    "prefillPairs": _Sum(PREFILL, "s.prefillPairs += n*progress + n*(n+1)/2", "token pairs attended in prefill"),
    "kvSum": _Sum(ALL, "s.kvSum += progress", "sum of progress, tokens"),
    "kvSquares": _Sum(ALL, "s.kvSquares += progress * progress", "sum of squared progress, tokens^2"),
    "kvMax": _Sum(ALL, "s.kvMax = max(s.kvMax, progress)", "largest progress, tokens"),
    "kvDecodeSum": _Sum(DECODE, "s.kvDecodeSum += progress", "sum of progress over decodes, tokens"),
    "kvDecodeMax": _Sum(
        DECODE, "s.kvDecodeMax = max(s.kvDecodeMax, progress)", "largest progress over decodes, tokens"
    ),
    "promptPairs": _Sum(
        PREFILL,
        "s.promptPairs += n * (2*prompt + n)",
        "new tokens times new tokens and twice the prompt, over prefills",
    ),
}
_MOMENTS = "b.prefillReqs+b.decodeReqs", "b.kvSum", "b.kvSquares"  # of progress: number, sum, sum of squares
# special field -> its Go helper
_SPECIAL = {"graph_batch": "capturedBatch", "graph_tokens": "capturedTokens", "experts_fraction": "expertsTouched"}


@dataclass(frozen=True, slots=True)
class GoRequests:
    """The requests of a step in Go: the list, its type, and expressions of a request's tokens; `function` sums them.

    tokens: new ones, an int. progress, prompt: int64.
    """

    function: str
    batch: str
    type: str
    tokens: str
    progress: str
    prompt: str


def host_requests(prompt: str) -> GoRequests:
    """Those that the host gives a latency model. `prompt` is the Go expression of a prompt's length, an int64."""
    return GoRequests("sumBatch", "batch", "[]*sim.Request", "req.NumNewTokens", "req.ProgressIndex", prompt)


@dataclass(frozen=True)
class BatchUse:
    """The fields of the batch that a step time reads, operands first, and what they are computed from.

    sums: Go names of integer sums. facts: of the deployment. curves: of measured kernels, in schema order. forest: the
    ensemble of trees, if it is read.
    """

    fields: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    facts: frozenset[str] = frozenset()
    curves: tuple[str, ...] = ()
    forest: Forest | None = None


def batch_use(function: Function, forest: Forest | None) -> BatchUse:
    """Find what a function reads of the batch, directly, through formulas, or through the features of `forest`."""
    fields: dict[str, None] = {}
    facts: set[str] = set()

    def visit(name: str) -> None:
        if name in fields:
            return
        operands = _operands(name, forest)
        for field in operands:
            if field.scope == "b":
                visit(field.name)
        facts.update(field.name for field in operands if field.scope == "s")
        fields[name] = None

    for node in nodes(function):
        if isinstance(node, Field) and node.scope == "b":
            visit(node.name)
    raw = {batch_name(name) for name in fields if name in RAW and name != "kv_var"}
    if "kv_var" in fields:
        raw |= {"prefillReqs", "decodeReqs", "kvSum", "kvSquares"}
    read = {READABLE["b", name].curve for name in fields if name != TREES.name}
    return BatchUse(
        tuple(fields),
        tuple(name for name in _SUMS if name in raw),
        frozenset(facts),
        tuple(name for name in CURVES if name in read),
        forest if TREES.name in fields else None,
    )


def _operands(name: str, forest: Forest | None) -> tuple[Field, ...]:
    """The fields that a batch field is computed from: none for a raw one. Raises InputError without an ensemble."""
    if name == TREES.name:
        if forest is None:
            raise InputError(NO_FOREST)
        read = (n for text in forest.features for n in walk(feature(text)) if isinstance(n, Field))
        phase = Field("b", "prefill_reqs"), Field("b", "decode_reqs")  # which correction holds
        return tuple(dict.fromkeys((*phase, *read)))
    if name in SPECIAL:
        return operands(name)
    if name in RAW:
        return ()
    return tuple(dict.fromkeys(n for n in walk(formula(name)) if isinstance(n, Field)))


def sums_type(use: BatchUse, name: BackendName) -> str:
    """The Go struct of the sums, in the backend `name`."""
    rows = [(total, "int64", f"// {_SUMS[total].meaning}") for total in use.sums]
    return name.fill(_TEXT["sums"], doc=comment(name.fill(_TEXT["about_sums"])), sums=columns(rows))


def sum_function(use: BatchUse, name: BackendName, requests: GoRequests) -> str:
    """The Go function that sums over the batch in one pass, without requests that have no new tokens."""
    used = [_SUMS[total] for total in use.sums]
    updates = {phase: [u.update for u in used if u.phase == phase] for phase in (ALL, PREFILL, DECODE)}
    reads = {variable for variable in ("n", "progress", "prompt") if any(u.reads(variable) for u in used)}
    body = [f"n := int64({requests.tokens})"] if "n" in reads else []
    body += [f"progress := {requests.progress}"] if "progress" in reads else []
    body += updates[ALL]
    body += [f"prompt := {requests.prompt}"] if "prompt" in reads else []
    progress = "progress" if "progress" in reads else requests.progress
    length = "prompt" if "prompt" in reads else requests.prompt
    prefill, decode = ([f"\t{update}" for update in updates[phase]] for phase in (PREFILL, DECODE))
    if prefill and decode:
        body += [f"if {progress} < {length} {{", *prefill, "} else {", *decode, "}"]
    elif prefill or decode:
        body += [f"if {progress} {'<' if prefill else '>='} {length} {{", *prefill, *decode, "}"]
    function = name.of(requests.function)
    doc = comment(name.fill(_TEXT["about_sum_batch"], function=function))
    return name.fill(
        _TEXT["sum_batch"],
        doc=doc,
        function=function,
        batch=requests.batch,
        type=requests.type,
        tokens=requests.tokens,
        body=indented(body, "\t\t"),
    )


def declare(use: BatchUse, lowering: Lowering) -> None:
    """Declare the batch fields as float64 variables of the step function, operands first."""
    for name in use.fields:
        if name == TREES.name:
            assert use.forest
            features = [rounded(lowering.lower(feature(text))) for text in use.forest.features]
            lowering.lines += declare_trees(features, lowering.indent, lowering.names.name)
        else:
            lowering.add(f"{batch_name(name)} := ", value_of(name, lowering))


def value_of(name: str, lowering: Lowering) -> GoExpr:
    """The Go expression of a batch field other than `trees`, from its operands."""
    if name == "kv_var":
        return lowering.helper("variance", *map(GoAtom, _MOMENTS))
    if name in RAW:
        return GoAtom(f"float64(b.{batch_name(name)})")
    if name in SPECIAL:
        return lowering.helper(_SPECIAL[name], *map(lowering.field, operands(name)))
    value = rounded(lowering.lower(formula(name)))
    curve = READABLE["b", name].curve
    return lowering.helper("curveAt", GoAtom(f"d.{curve_name(curve)}"), value) if curve else value


def read_as(field: Field) -> GoExpr:
    """The Go expression by which formulas read a field. Raises KeyError for a field that does not exist."""
    if field.scope == "b":
        return GoAtom(batch_name(field.name))
    if field.scope == "r":
        return GoAtom(READABLE["r", field.name].go)
    if field.name == "reference_step_us":
        return GoAtom("m.referenceStepUs")
    return GoAtom(f"{'o' if field.name in SETTINGS else 'd'}.{fact(field.name)}")


@dataclass(frozen=True, slots=True)
class GoField:
    """A field in Go. variable: in formulas. expression: its value, from fields, sums over the batch (b.), facts of the
    deployment (d.) and settings of the engine (o.). update: the statement by which a request adds to that sum, "" for
    other fields."""

    variable: str
    expression: str
    update: str


def go_field(scope: str, name: str) -> GoField:
    """The field as the emitter writes it for blis-4 under the default name, each expression on one line.

    >>> go_field("b", "kv_read_us")
    GoField(variable='kvReadUs', expression='float64(d.KvUsPerToken * kvSum)', update='')
    """
    read = show(read_as(Field(scope, name)))
    if scope == "r":
        return GoField(read, "float64(req.InputLen())", "")
    if scope == "s":
        return GoField(read, read, "")
    if name == TREES.name:
        return GoField(read, show(call_of_trees(DEFAULT)), "")
    update = _SUMS["kvSquares" if name == "kv_var" else batch_name(name)].update if name in RAW else ""
    return GoField(read, show(value_of(name, Lowering(GoNames(DEFAULT), read_as, set()))), update)
