"""name_kernels.go and name_tables.go: curves of measured kernels for any model, and the tables behind them.

The first is a port of simulator.kernels. Each function and table is written only if the program reads a curve that
needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from simulator.kernels.allreduce import CUSTOMS, SWITCHED_ABOVE, SWITCHED_US
from simulator.kernels.attention import Shape, decode_lines, decode_rows, prefill_rows
from simulator.kernels.matrices import Experts, gemm_rows, tensor_scales
from simulator.kernels.tables import tables
from translate_go.naming import MARK, BackendName, camel, columns, comment, digits, import_block
from translate_go.table import source_notices
from translate_go.templates import sections

_TEXT = sections("tables")
_KERNELS = sections("kernels")
# curve -> the sections of functions that it is computed with, beside its own
_NEEDS: dict[str, tuple[str, ...]] = {
    "gemm": ("numeric", "roofline", "gemm"),
    "elementwise": (),
    "small": (),
    "moe": ("numeric", "roofline", "moe"),
    "moe_quantized": ("numeric", "roofline", "moe"),
    "router": ("numeric", "roofline", "gemm"),
    "allreduce": ("numeric", "allreduce"),
    "lm_head": ("numeric", "roofline", "gemm"),
    "sampler": (),
    "decode_launch": ("numeric", "nearest", "decode"),
    "decode_per_token": ("numeric", "nearest", "decode"),
    "window_per_token": ("numeric", "nearest", "decode"),
    "prefill_per_pair": ("numeric", "nearest", "prefill"),
}

# operation -> its fields of <name>Tables with their types
_FIELDS = {
    "gemm": (("gemm, gemmFp8", "*<name>Gemms"),),
    "moe": (
        ("moe, moeFp8, moeFp8Block", "*<name>Moes"),
        ("tensorScales", "bool // of fp8 experts, one scale a tensor is the fast kind"),
    ),
    "decode": (("decode", "<name>Decodes"),),
    "prefill": (("prefill", "<name>Prefills"),),
    "allreduce": (("allreduce", "<name>Reduces"),),
}
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"  # of base 64
LOWEST = 8  # 10^-8 us is the unit of the smallest latencies
WIDTH = 1200  # characters in a line of a list
_WIDTH = {"bf16": 2, "fp8": 1, "fp8_block": 1}  # bytes of a weight
_SUFFIX = {"bf16": "", "fp8": "Fp8", "fp8_block": "Fp8Block"}


def curve_method(curve: str) -> str:
    """The Go method of the model that computes a curve: `lm_head` -> `lmHeadCurve`."""
    return camel(f"{curve}_curve")


def tables_read(curves: Sequence[str]) -> frozenset[str]:
    """The operations whose tables these curves are computed from: gemm, moe, decode, prefill, allreduce."""
    return frozenset(part for curve in curves for part in _NEEDS[curve]) - {"numeric", "roofline", "nearest"}


def kernels_file(name: BackendName, curves: Sequence[str]) -> str:
    """The text of the file with a method for each of these curves."""
    wanted = {"base", *map(curve_method, curves), *(part for curve in curves for part in _NEEDS[curve])}
    body = "\n\n".join(text for section, text in _KERNELS.items() if section in wanted)
    imports = import_block(body, ("fmt", "math", "slices", "sort", "strconv", "strings"))
    kb, us = ", ".join(map(str, SWITCHED_US)), ", ".join(map(digits, SWITCHED_US.values()))
    return name.fill(
        f"// {MARK}\n\npackage latency\n\n{imports}\n\n{body}\n", kb=kb, us=us, digits=DIGITS, lowest=LOWEST
    )


def variable(gpu: str) -> str:
    """The Go variable of a GPU's tables, to be filled with the name: `h100_sxm` -> `<name>H100Sxm`."""
    return "<name>" + "".join(part.capitalize() for part in gpu.split("_"))


def tables_file(name: BackendName, gpus: Sequence[str], read: frozenset[str]) -> str:
    """The text of the file with the operations `read` of these GPUs, as kernels_file reads them."""
    fields = [row for operation, rows in _FIELDS.items() if operation in read for row in rows]
    notice = "\n".join([comment(_TEXT["about"]), *source_notices(gpus)])
    parts = [
        f"// {MARK}\n\npackage latency\n\n{notice}",
        _TEXT["tables"].replace("<fields>", "".join(f"{row}\n" for row in columns(fields).splitlines())),
    ]
    if {"decode", "prefill"} & read:
        parts.append(_TEXT["heads"])
    parts += [_TEXT[operation] for operation in _FIELDS if operation in read]
    parts += ["\n".join([f"var {variable(gpu)} = <name>Tables{{", *_tables(gpu, read), "}"]) for gpu in gpus]
    return name.fill("\n\n".join(parts)) + "\n"


@cache
def _tables(gpu: str, read: frozenset[str]) -> tuple[str, ...]:
    lines: list[str] = []
    for dtype in ("bf16", "fp8"):
        lines += _gemms(gpu, dtype) if "gemm" in read else []
    if "moe" in read and tensor_scales(gpu):
        lines.append("\ttensorScales: true,")
    for dtype in ("bf16", "fp8", "fp8_block"):
        lines += _moes(gpu, dtype) if "moe" in read else []
    lines += _decodes(gpu) if "decode" in read else []
    lines += _prefills(gpu) if "prefill" in read else []
    lines += _reduces(gpu) if "allreduce" in read else []
    return tuple(lines)


def _gemms(gpu: str, dtype: str) -> list[str]:
    measured, _ = gemm_rows(gpu, dtype)
    if not measured:
        return []
    axis = sorted({t for tokens, _ in measured.values() for t in tokens.tolist()})
    rows = [f"{{{n}, {k}, {_row(axis, *measured[n, k])}}}" for n, k in sorted(measured)]
    return [
        f"\tgemm{_SUFFIX[dtype]}: &<name>Gemms{{",
        f"\t\tweightBytes: {_WIDTH[dtype]},",
        f"\t\ttokens:      {_floats(axis)},",
        *_list("shapes", "<name>Gemm", rows),
        "\t},",
    ]


def _moes(gpu: str, dtype: str) -> list[str]:
    """The routed experts in the order of the table, in which the nearest shape is looked for."""
    rows = tables(gpu).rows["moe"]
    mine = (rows["dtype"] == dtype) & (rows["ep"] == 1)
    if not mine.any():
        return []
    balanced = mine & (rows["routing"] == "balanced")
    even = bool(balanced.any())
    mine = balanced if even else mine
    measured: dict[Experts, dict[int, list[float]]] = {}
    names = ("hidden", "ffn", "gpus", "experts", "active", "tokens", "latency_us")
    for hidden, ffn, gpus, experts, active, tokens, us in zip(*(rows[c][mine] for c in names), strict=True):
        shape = Experts(int(hidden), int(ffn // gpus), int(experts), int(active))
        measured.setdefault(shape, {}).setdefault(int(tokens), []).append(float(us))
    axis = sorted({t for by_tokens in measured.values() for t in by_tokens})
    shapes = []
    for shape, by_tokens in measured.items():
        times = max(len(us) for us in by_tokens.values())
        assert times <= 2 and all(len(us) == times for us in by_tokens.values()), (gpu, dtype, shape)
        tokens = sorted(by_tokens)
        columns_us = [_row(axis, tokens, [by_tokens[t][i] for t in tokens]) for i in range(times)]
        again = columns_us[1] if times == 2 else '""'
        shapes.append(f"{{{', '.join(map(str, shape[:4]))}, {columns_us[0]}, {again}}}")
    return [
        f"\tmoe{_SUFFIX[dtype]}: &<name>Moes{{",
        f"\t\tweightBytes: {_WIDTH[dtype]},",
        f"\t\teven:        {str(even).lower()},",
        f"\t\ttokens:      {_floats(axis)},",
        *_list("shapes", "<name>Experts", shapes),
        "\t},",
    ]


def _decodes(gpu: str) -> list[str]:
    """Decode attention, without shapes that have no line, because all their KV caches fit in the L2 cache."""
    fitted = {shape: decode_lines(gpu, shape) for shape in sorted(decode_rows(gpu))}
    fitted = {shape: line for shape, line in fitted.items() if len(line[0]) >= 2}
    lines = [f"{{{', '.join(_floats(part.tolist()) for part in line)}}}" for line in fitted.values()]
    return ["\tdecode: <name>Decodes{", *_shapes(fitted), *_list("lines", "<name>Line", lines), "\t},"]


def _prefills(gpu: str) -> list[str]:
    measured = {shape: columns for shape, (columns, _) in sorted(prefill_rows(gpu).items())}
    axis = sorted({n for lengths, _ in measured.values() for n in lengths.tolist()})
    rows = [_row(axis, lengths, us) for lengths, us in measured.values()]
    lengths = f"\t\tlengths: {_floats(axis)},"
    return ["\tprefill: <name>Prefills{", lengths, *_shapes(measured), *_list("us", "string", rows), "\t},"]


def _reduces(gpu: str) -> list[str]:
    lines = ["\tallreduce: <name>Reduces{"]
    if gpu in SWITCHED_ABOVE:
        lines.append(f"\t\tswitchedAbove: {SWITCHED_ABOVE[gpu]} << 10,")
    rows = tables(gpu).rows["allreduce"]
    for field, kernels in (("custom", CUSTOMS), ("nccl", ("nccl",))):
        mine = np.isin(rows["kernel"].astype(str), kernels)
        gpus, sizes, us = (rows[c][mine] for c in ("gpus", "bytes", "latency_us"))
        reduces = []
        for n in np.unique(gpus):
            here = gpus == n
            axis = sizes[here].astype(float).tolist()
            reduces.append(f"{{{n}, {_floats(axis)}, {_row(axis, axis, us[here].tolist())}}}")
        lines += _list(field, "<name>Reduce", reduces) if reduces else []
    return [*lines, "\t},"]


def _shapes(shapes: Iterable[Shape]) -> list[str]:
    return _list("shapes", "<name>Heads", [f"{{{', '.join(map(str, shape))}}}" for shape in shapes])


def _list(field: str, kind: str, elements: Sequence[str]) -> list[str]:
    each = max(1, WIDTH // (max(map(len, elements), default=0) + 2))
    lines = (f"\t\t\t{', '.join(row)}," for row in batched(elements, each))
    return [f"\t\t{field}: []{kind}{{", *lines, "\t\t},"]


def batched(elements: Sequence[str], each: int) -> list[Sequence[str]]:
    """The elements in groups of that many."""
    return [elements[i : i + each] for i in range(0, len(elements), each)]


def _row(axis: Sequence[float], at: Iterable[float], us: Iterable[float]) -> str:
    """Latencies on an axis as a Go string, three characters each."""
    measured = dict(zip(at, us, strict=True))
    return f'"{"".join(_packed(measured.get(x, 0.0)) for x in axis)}"'


@cache
def _packed(us: float) -> str:
    """A latency of the tables, the float32 next to a number of four digits, in three characters; "000" for none.

    They are the digits of a number in base 64: 10,000 (exponent + 8) + mantissa.
    """
    if not us:
        return 3 * DIGITS[0]
    mantissa, exponent = f"{us:.3e}".split("e")
    power = int(exponent) - 3
    number = 10_000 * (power + LOWEST) + int(mantissa.replace(".", ""))
    assert 0 <= power + LOWEST <= 25, us
    return DIGITS[number // 4096] + DIGITS[number // 64 % 64] + DIGITS[number % 64]


def _floats(values: Iterable[float]) -> str:
    return _text(map(digits, values))


def _text(numbers: Iterable[str]) -> str:
    """A row of numbers as a Go string, which compiles far faster than a slice."""
    return f'"{" ".join(numbers)}"'
