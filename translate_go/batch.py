"""The batch in Go: one pass that sums what is used as int64, and the fields computed from the sums."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.common.errors import InputError
from simulator.language.forest import Forest
from simulator.language.ir import Field, Function, nodes, walk
from simulator.language.opcodes import NO_FOREST, feature, formula
from simulator.schema import CURVES, RAW, READABLE, SPECIAL, TREES
from translate_go.goexpr import GoAtom, GoExpr
from translate_go.lower import Lowering, rounded
from translate_go.naming import BackendName
from translate_go.spelling import batch_name, columns, comment, curve_name
from translate_go.trees import declare_trees

ALL, PREFILL, DECODE = "all", "prefill", "decode"


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum over the batch in Go."""

    meaning: str
    update: str  # the statement that adds a request
    phase: str  # the requests it is over
    reads: str = ""  # the variables of the request that the statement reads: n (new tokens), progress, prompt


_SUMS = {
    "prefillReqs": _Sum("requests still in their prompt", "s.prefillReqs++", PREFILL),
    "decodeReqs": _Sum("requests past their prompt", "s.decodeReqs++", DECODE),
    "prefillTokens": _Sum("new prompt tokens", "s.prefillTokens += n", PREFILL, "n"),
    "maxPrefillChunk": _Sum(
        "largest prompt chunk, tokens", "s.maxPrefillChunk = max(s.maxPrefillChunk, n)", PREFILL, "n"
    ),
    "prefillPairs": _Sum(
        "token pairs attended in prefill", "s.prefillPairs += n*progress + n*(n+1)/2", PREFILL, "n progress"
    ),
    "kvSum": _Sum("sum of progress, tokens", "s.kvSum += progress", ALL, "progress"),
    "kvSquares": _Sum("sum of squared progress, tokens^2", "s.kvSquares += progress * progress", ALL, "progress"),
    "kvMax": _Sum("largest progress, tokens", "s.kvMax = max(s.kvMax, progress)", ALL, "progress"),
    "kvDecodeSum": _Sum("sum of progress over decodes, tokens", "s.kvDecodeSum += progress", DECODE, "progress"),
    "kvDecodeMax": _Sum(
        "largest progress over decodes, tokens", "s.kvDecodeMax = max(s.kvDecodeMax, progress)", DECODE, "progress"
    ),
    "promptPairs": _Sum(
        "new tokens times new tokens and twice the prompt, over prefills",
        "s.promptPairs += n * (2*prompt + n)",
        PREFILL,
        "n prompt",
    ),
}
_MOMENTS = "b.prefillReqs+b.decodeReqs", "b.kvSum", "b.kvSquares"  # of progress: number, sum, sum of squares
# special field -> its Go helper, and the arguments
_SPECIAL = {
    "graph_batch": ("capturedBatch", (Field("b", "prefill_reqs"), Field("b", "decode_reqs"))),
    "graph_tokens": ("capturedTokens", (Field("b", "tokens"), Field("s", "max_num_seqs"))),
    "experts_fraction": ("expertsTouched", (Field("s", "active_experts"), Field("s", "experts"), Field("b", "tokens"))),
}


@dataclass(frozen=True)
class BatchUse:
    """What a step time reads of its batch."""

    fields: tuple[str, ...] = ()  # batch fields, operands first
    sums: tuple[str, ...] = ()  # Go names of the integer sums that they are computed from
    facts: frozenset[str] = frozenset()  # deployment facts that their formulas read
    curves: tuple[str, ...] = ()  # curves of measured kernels, in schema order
    forest: Forest | None = None  # the ensemble of trees, if it is read


def batch_use(function: Function, forest: Forest | None) -> BatchUse:
    """The use that a function makes of the batch, directly, through formulas, or through the features of `forest`."""
    fields: dict[str, None] = {}
    facts: set[str] = set()

    def visit(name: str) -> None:
        name = variable(name)
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


def variable(name: str) -> str:
    """The batch field that has the same value: the other one if `name` is a second name for it, else `name`."""
    if name not in (*RAW, *SPECIAL, TREES.name) and not READABLE["b", name].curve:
        match formula(name):
            case Field("b", other):
                return other
    return name


def _operands(name: str, forest: Forest | None) -> tuple[Field, ...]:
    """The fields that a batch field is computed from: none for a raw one. Raises InputError for trees without any."""
    if name == TREES.name:
        if forest is None:
            raise InputError(NO_FOREST)
        read = (n for text in forest.features for n in walk(feature(text)) if isinstance(n, Field))
        phase = Field("b", "prefill_reqs"), Field("b", "decode_reqs")  # which correction holds
        return tuple(dict.fromkeys((*phase, *read)))
    if name in SPECIAL:
        return _SPECIAL[name][1]
    if name in RAW:
        return ()
    return tuple(dict.fromkeys(n for n in walk(formula(name)) if isinstance(n, Field)))


def sums_type(use: BatchUse, name: BackendName) -> list[str]:
    """The Go struct of the sums, in the backend `name`."""
    rows = [(total, "int64", f"// {_SUMS[total].meaning}") for total in use.sums]
    return [
        *comment(
            f"{name.of('batchSums')} are the sums over the requests of a step that the program reads. A request's "
            "progress is its ProgressIndex, the tokens done before the step."
        ),
        f"type {name.of('batchSums')} struct {{",
        *columns(rows, "\t"),
        "}",
    ]


def sum_function(use: BatchUse, name: BackendName, prompt: str) -> list[str]:
    """The Go function that sums over the batch in one pass, without requests that have no new tokens.

    `prompt` is the Go expression of a request's prompt length, an int64.
    """
    used = [_SUMS[total] for total in use.sums]
    updates = {phase: [u.update for u in used if u.phase == phase] for phase in (ALL, PREFILL, DECODE)}
    reads = {name for u in used for name in u.reads.split()}
    lines = [
        *comment(
            f"{name.of('sumBatch')} sums over the batch in one pass, without changing it. Requests without new tokens "
            "(their prompt was fully cached) do not count. Requests whose progress is short of their prompt are in "
            "prefill, others in decode."
        ),
        f"func {name.of('sumBatch')}(batch []*sim.Request) {name.of('batchSums')} {{",
        f"\tvar s {name.of('batchSums')}",
        "\tfor _, req := range batch {",
        "\t\tif req.NumNewTokens <= 0 {",
        "\t\t\tcontinue",
        "\t\t}",
    ]
    lines += ["\t\tn := int64(req.NumNewTokens)"] if "n" in reads else []
    lines += ["\t\tprogress := req.ProgressIndex"] if "progress" in reads else []
    lines += [f"\t\t{update}" for update in updates[ALL]]
    lines += [f"\t\tprompt := {prompt}"] if "prompt" in reads else []
    progress = "progress" if "progress" in reads else "req.ProgressIndex"
    length = "prompt" if "prompt" in reads else prompt
    prefill, decode = ([f"\t\t\t{update}" for update in updates[phase]] for phase in (PREFILL, DECODE))
    if prefill and decode:
        lines += [f"\t\tif {progress} < {length} {{", *prefill, "\t\t} else {", *decode, "\t\t}"]
    elif prefill or decode:
        compare = "<" if prefill else ">="
        lines += [f"\t\tif {progress} {compare} {length} {{", *prefill, *decode, "\t\t}"]
    return [*lines, "\t}", "\treturn s", "}"]


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
        helper, operands = _SPECIAL[name]
        return lowering.helper(helper, *map(lowering.field, operands))
    value = rounded(lowering.lower(formula(name)))
    curve = READABLE["b", name].curve
    return lowering.helper("curveAt", GoAtom(f"d.{curve_name(curve)}"), value) if curve else value


def sum_update(name: str) -> str:
    """The Go statement by which a request adds to the sum of a raw batch field; of `kv_var`, to its sum of squares."""
    return _SUMS["kvSquares" if name == "kv_var" else batch_name(name)].update
