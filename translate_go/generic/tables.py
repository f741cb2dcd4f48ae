"""The measured kernels of every GPU as Go literals, as far as a program's curves are computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from simulator.kernels.allreduce import CUSTOM, HOPPER
from simulator.kernels.attention import Shape, decode_lines, decode_rows, prefill_rows
from simulator.kernels.matrices import Experts, gemm_rows
from simulator.kernels.tables import tables
from translate_go.naming import BackendName
from translate_go.spelling import MARK, comment, digits

_TYPES = {
    "gemm": """\
// <name>Gemms are matrix products from width k to width n: us by tokens, 0 where not measured.
type <name>Gemms struct {
	weightBytes float64
	tokens      string
	shapes      []<name>Gemm
}

type <name>Gemm struct {
	n, k int64
	us   string
}
""",
    "moe": """\
// <name>Moes are routed experts: us by tokens, 0 where not measured; even if the tokens are spread evenly over them.
type <name>Moes struct {
	weightBytes float64
	even        bool
	tokens      string
	shapes      []<name>Experts
}

// <name>Experts have an expert's width on one GPU, and the experts that a token uses. Some were measured again.
type <name>Experts struct {
	hidden, ffn, experts, active int64
	us, again                    string
}
""",
    "decode": """\
// <name>Decodes are lines through measured decode attention, by requests: the launch in us, and us a token of context.
type <name>Decodes struct {
	shapes []<name>Heads
	lines  []<name>Line
}

type <name>Line struct {
	batches, launch, perToken string
}
""",
    "prefill": """\
// <name>Prefills are prompts' attention: us by length.
type <name>Prefills struct {
	lengths string
	shapes  []<name>Heads
	us      []string
}
""",
    "allreduce": """\
// <name>Reduces are all-reduces of the engine's own kernel and of NCCL. switched: the NVLink switch reduces too.
type <name>Reduces struct {
	switched     bool
	custom, nccl []<name>Reduce
}

type <name>Reduce struct {
	gpus  int64
	bytes string
	us    string
}
""",
}
_HEADS = """\
// <name>Heads is one GPU's share of a layer's attention.
type <name>Heads struct {
	heads, kvHeads, headDim int64
}
"""
# operation -> its fields of <name>Tables with their types
_FIELDS = {
    "gemm": (("gemm, gemmFp8", "*<name>Gemms"),),
    "moe": (("moe, moeFp8, moeFp8Block", "*<name>Moes"),),
    "decode": (("decode", "<name>Decodes"),),
    "prefill": (("prefill", "<name>Prefills"),),
    "allreduce": (("allreduce", "<name>Reduces"),),
}
_WIDTH = {"bf16": 2, "fp8": 1, "fp8_block": 1}  # bytes of a weight
_SUFFIX = {"bf16": "", "fp8": "Fp8", "fp8_block": "Fp8Block"}
_ABOUT = (
    "Measured latencies of single kernels, one variable a GPU, with rows selected and sorted, repeated measurements "
    "replaced by their median, and latencies in microseconds rounded to four digits, which stand for the nearest "
    "float32. Lines of decode attention are fitted to them. A row is a text, so that it compiles at once."
)


def variable(gpu: str) -> str:
    """The Go variable of a GPU's tables, to be filled with the name: `h100_sxm` -> `<name>H100Sxm`."""
    return "<name>" + "".join(part.capitalize() for part in gpu.split("_"))


def tables_file(name: BackendName, gpus: Sequence[str], read: frozenset[str]) -> str:
    """The text of the file with the operations `read` of these GPUs, as kernels_file reads them."""
    fields = [row for operation, rows in _FIELDS.items() if operation in read for row in rows]
    width = max((len(names) for names, _ in fields), default=0)
    lines = [f"// {MARK}", "", "package latency", "", *comment(_ABOUT), *_sources(gpus), ""]
    lines += [
        "// <name>Tables are the measured kernels of a GPU.", "type <name>Tables struct {",
        *(f"\t{names.ljust(width)} {kind}" for names, kind in fields), "}", "",
    ]  # fmt: skip
    if {"decode", "prefill"} & read:
        lines += _HEADS.split("\n")
    for operation, text in _TYPES.items():
        lines += text.split("\n") if operation in read else []
    for gpu in gpus:
        lines += [f"var {variable(gpu)} = <name>Tables{{", *_tables(gpu, read), "}", ""]
    return name.fill("\n".join(lines))


def _sources(gpus: Iterable[str]) -> list[str]:
    """Where the measurements are from, under which licence."""
    sources: dict[tuple[str, str, str], list[str]] = {}
    for gpu in gpus:
        about = tables(gpu).about
        sources.setdefault((about["source"], about["license"], about["copyright"]), []).append(gpu)
    lines = []
    for (source, licence, holder), named in sources.items():
        lines += [
            "//",
            *comment(f"Source: {source}, licence {licence}, tables of {', '.join(named)}."),
            *comment(holder),
        ]
    return lines


@cache
def _tables(gpu: str, read: frozenset[str]) -> tuple[str, ...]:
    lines: list[str] = []
    if "gemm" in read:
        for dtype in ("bf16", "fp8"):
            lines += _gemms(gpu, dtype)
    if "moe" in read:
        for dtype in ("bf16", "fp8", "fp8_block"):
            lines += _moes(gpu, dtype)
    lines += _decodes(gpu) if "decode" in read else []
    lines += _prefills(gpu) if "prefill" in read else []
    lines += _reduces(gpu) if "allreduce" in read else []
    return tuple(lines)


def _gemms(gpu: str, dtype: str) -> list[str]:
    measured, _ = gemm_rows(gpu, dtype)
    if not measured:
        return []
    axis = sorted({t for tokens, _ in measured.values() for t in tokens.tolist()})
    rows = [
        f"\t\t\t{{{n}, {k}, {_row(axis, *measured[n, k])}}},"
        for n, k in sorted(measured)
    ]  # fmt: skip
    return [
        f"\tgemm{_SUFFIX[dtype]}: &<name>Gemms{{",
        f"\t\tweightBytes: {_WIDTH[dtype]},",
        f"\t\ttokens:      {_floats(axis)},",
        "\t\tshapes: []<name>Gemm{", *rows, "\t\t},", "\t},",
    ]  # fmt: skip


def _moes(gpu: str, dtype: str) -> list[str]:
    """In the order of the table, in which the nearest shape is looked for."""
    rows = tables(gpu).rows["moe"]
    mine = rows["dtype"] == dtype
    if not mine.any():
        return []
    balanced = mine & (rows["routing"] == "balanced")
    even = bool(balanced.any())
    mine = balanced if even else mine
    measured: dict[Experts, dict[int, list[float]]] = {}
    columns = ("hidden", "ffn", "gpus", "experts", "active", "tokens", "latency_us")
    for hidden, ffn, gpus, experts, active, tokens, us in zip(*(rows[c][mine] for c in columns), strict=True):
        shape = int(hidden), int(ffn // gpus), int(experts), int(active)
        measured.setdefault(shape, {}).setdefault(int(tokens), []).append(float(us))
    axis = sorted({t for by_tokens in measured.values() for t in by_tokens})
    lines = []
    for shape, by_tokens in measured.items():
        times = max(len(us) for us in by_tokens.values())
        assert times <= 2 and all(len(us) == times for us in by_tokens.values()), (gpu, dtype, shape)
        tokens = sorted(by_tokens)
        columns_us = [_row(axis, tokens, [by_tokens[t][i] for t in tokens]) for i in range(times)]
        again = columns_us[1] if times == 2 else '""'
        lines.append(f"\t\t\t{{{', '.join(map(str, shape))}, {columns_us[0]}, {again}}},")
    return [
        f"\tmoe{_SUFFIX[dtype]}: &<name>Moes{{",
        f"\t\tweightBytes: {_WIDTH[dtype]},",
        f"\t\teven:        {str(even).lower()},",
        f"\t\ttokens:      {_floats(axis)},",
        "\t\tshapes: []<name>Experts{", *lines, "\t\t},", "\t},",
    ]  # fmt: skip


def _decodes(gpu: str) -> list[str]:
    """Without shapes that have no line, because all their KV caches fit in the L2 cache."""
    fitted = {shape: decode_lines(gpu, shape) for shape in sorted(decode_rows(gpu))}
    fitted = {shape: line for shape, line in fitted.items() if len(line[0]) >= 2}
    return [
        "\tdecode: <name>Decodes{",
        *_shapes("<name>Heads", fitted),
        "\t\tlines: []<name>Line{",
        *(f"\t\t\t{{{', '.join(_floats(part.tolist()) for part in line)}}}," for line in fitted.values()),
        "\t\t},", "\t},",
    ]  # fmt: skip


def _prefills(gpu: str) -> list[str]:
    measured = {shape: columns for shape, (columns, _) in sorted(prefill_rows(gpu).items())}
    axis = sorted({n for lengths, _ in measured.values() for n in lengths.tolist()})
    return [
        "\tprefill: <name>Prefills{",
        f"\t\tlengths: {_floats(axis)},",
        *_shapes("<name>Heads", measured),
        "\t\tus: []string{",
        *(f"\t\t\t{_row(axis, lengths, us)}," for lengths, us in measured.values()),
        "\t\t},", "\t},",
    ]  # fmt: skip


def _reduces(gpu: str) -> list[str]:
    lines = ["\tallreduce: <name>Reduces{"]
    if gpu in HOPPER:
        lines.append("\t\tswitched: true,")
    rows = tables(gpu).rows["allreduce"]
    for field, kernel in (("custom", CUSTOM), ("nccl", "nccl")):
        mine = rows["kernel"] == kernel
        gpus, sizes, us = (rows[c][mine] for c in ("gpus", "bytes", "latency_us"))
        if not mine.any():
            continue
        lines.append(f"\t\t{field}: []<name>Reduce{{")
        for n in np.unique(gpus):
            here = gpus == n
            axis = sizes[here].astype(float).tolist()
            lines.append(f"\t\t\t{{{n}, {_floats(axis)}, {_row(axis, axis, us[here].tolist())}}},")
        lines.append("\t\t},")
    return [*lines, "\t},"]


def _shapes(kind: str, shapes: Iterable[Shape]) -> list[str]:
    return [f"\t\tshapes: []{kind}{{", *(f"\t\t\t{{{', '.join(map(str, shape))}}}," for shape in shapes), "\t\t},"]


def _row(axis: Sequence[float], at: Iterable[float], us: Iterable[float]) -> str:
    """Latencies of four digits on an axis, 0 where there is none."""
    measured = dict(zip(at, us, strict=True))
    return _text(_short(measured.get(x, 0.0)) for x in axis)


@cache
def _short(us: float) -> str:
    """A latency of the tables: the float32 next to a number of four digits."""
    return digits(float(f"{us:.4g}"))


def _floats(values: Iterable[float]) -> str:
    return _text(map(digits, values))


def _text(numbers: Iterable[str]) -> str:
    """A row of numbers as a Go string, which compiles far faster than a slice."""
    return f'"{" ".join(numbers)}"'
