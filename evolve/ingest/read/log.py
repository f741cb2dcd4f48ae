"""vllm.log: what the engine logged about itself at startup. Each fact is taken from the first line that states it.

Lines are `<date time> <LEVEL> <logger>: <message>`, with the messages of vLLM 0.15.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from evolve.ingest.read.values import Finding, FolderFindings
from simulator.common.errors import reason
from simulator.common.json import JsonObject

BLOCK_SIZE = 16  # tokens per block in the log's own count, independent of --block-size
LONGEST_LINE = 64 * 1024  # bytes of a line that are searched; the line with the engine's configuration has about 3 kB
DTYPE_BYTES = {"float32": 4, "float": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}
"""Bytes of one KV cache element by `kv_cache_dtype`, or by `dtype` if that is auto; 2 for any other type."""


@dataclass(frozen=True, slots=True)
class EngineLog:
    """The facts of one engine's log; None where no line states them.

    `kv_cache_tokens` is the size of the GPU's KV cache, `kv_cache_gib` its memory per rank. `cpu_bytes` is the CPU
    memory for KV offload over all ranks. `shape` is that of the cross-layer cache: blocks, layers, 2, block size and
    KV heads per rank in either order, head dim. `connector` is the class that moves KV out of the GPU.
    """

    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    cpu_bytes: float | None = None
    shape: tuple[int, ...] | None = None
    async_scheduling: bool | None = None
    version: str | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    connector: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def gpu_blocks(self) -> int | None:
        """KV blocks as the log counts them: one more than requests can use."""
        return None if self.kv_cache_tokens is None else self.kv_cache_tokens // BLOCK_SIZE

    @property
    def usable_blocks(self) -> int | None:
        """`kv.blocks_total_gpu` of the traces: all blocks but the null block."""
        return self.gpu_blocks - 1 if self.gpu_blocks else None

    @property
    def kv_offload(self) -> bool | None:
        """Whether KV was offloaded to the CPU; None if the log does not show how the cache was set up, or names
        another connector."""
        if self.cpu_bytes is not None:
            return self.cpu_bytes > 0
        return False if self.kv_cache_tokens is not None and self.connector is None else None

    def cpu_blocks(self, tensor_parallel: int) -> int | None:
        """KV blocks in CPU memory: floor(cpu_bytes / (bytes per block and rank * TP * PP))."""
        if not self.cpu_bytes or self.shape is None or tensor_parallel < 1:
            return None
        cache = self.kv_cache_dtype if self.kv_cache_dtype not in (None, "auto") else self.dtype
        block_bytes = math.prod(self.shape[1:]) * DTYPE_BYTES.get(cache or "", 2)
        ranks = tensor_parallel * (self.pipeline_parallel or 1)
        return int(self.cpu_bytes // (block_bytes * ranks)) if block_bytes else None


def _count(text: str) -> int | None:
    return int(text.replace(",", "")) or None if text.strip(",") else None


def _amount(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _text(text: str) -> str:
    return text


_Read = Callable[..., Any]
# Field of Log, bytes that a line with it contains, pattern, and what turns its groups into the value. Repetitions of
# digits are bounded, so that no line yields an unmanageable number.
_FACTS: tuple[tuple[str, bytes, str, _Read], ...] = (
    ("kv_cache_tokens", b"KV cache size", r"GPU KV cache size:\s+([\d,]{1,20})\s+tokens", _count),
    ("kv_cache_gib", b"KV cache memory", r"Available KV cache memory:\s*([\d.]{1,20})\s*GiB", _amount),
    ("cpu_bytes", b"cpu_bytes_to_use", r"cpu_bytes_to_use['\"]?\s*:\s*([\d.]{1,30}(?:[eE][+-]?\d{1,3})?)", _amount),
    (
        "shape",
        b"cross layer",
        r"cross layer KV cache of shape \((\d{1,9}), (\d{1,9}), (\d{1,9}), (\d{1,9}), (\d{1,9}), (\d{1,9})\)",
        lambda *dims: tuple(map(int, dims)),
    ),
    (
        "async_scheduling",
        b"Asynchronous",
        r"Asynchronous scheduling is (enabled|disabled)",
        lambda word: word == "enabled",
    ),
    ("version", b"LLM engine (v", r"LLM engine \(v([\w.+-]{1,40})\)", _text),
    ("version", b"server version", r"vLLM API server version v?(\d[\w.+-]{0,39})", _text),
    ("prefix_caching", b"enable_prefix_caching", r"enable_prefix_caching=(True|False)", lambda word: word == "True"),
    ("chunked_prefill", b"enable_chunked_prefill", r"enable_chunked_prefill=(True|False)", lambda word: word == "True"),
    ("tensor_parallel", b"tensor_parallel_size", r"tensor_parallel_size=(\d{1,6})\b", _count),
    ("pipeline_parallel", b"pipeline_parallel_size", r"pipeline_parallel_size=(\d{1,6})\b", _count),
    ("max_model_len", b"max_seq_len", r"max_seq_len=(\d{1,12})\b", _count),
    ("dtype", b"dtype=torch", r"(?<![\w])dtype=torch\.(\w{1,20})", _text),
    ("kv_cache_dtype", b"kv_cache_dtype", r"kv_cache_dtype=(\w{1,20})", _text),
    ("connector", b"kv_connector", r"kv_connector='(\w{1,60})'", _text),
)
_PATTERNS = tuple((name, sign, re.compile(pattern), read) for name, sign, pattern, read in _FACTS)


def read_log(path: Path | None) -> EngineLog:
    """The facts of a log; none without a log. Over-long lines are cut, which becomes a finding."""
    if path is None:
        return EngineLog()
    findings = FolderFindings()
    facts: JsonObject = {}
    unread: dict[str, int] = {}
    lines = cut = 0
    try:
        with path.open("rb") as file:
            for line, complete in _lines(file):
                lines += 1
                cut += not complete
                _search(line, facts, unread)
    except OSError as e:
        findings.warn("vllm.log", f"left out: cannot be read ({reason(e)}): check its permissions")
        return EngineLog(findings=tuple(findings))
    for name, count in unread.items():
        findings.warn("vllm.log", f"{name}: not a number: left out", count)
    if cut:
        text = f"{cut:,} lines longer than {LONGEST_LINE:,} bytes: only their beginning is searched"
        findings.warn("vllm.log", text, cut)
    if not facts:
        text = f"{lines:,} lines, none with a known fact about the engine: nothing is taken from it"
        findings.warn("vllm.log", text, max(lines, 1))
    elif "kv_cache_tokens" not in facts:
        findings.warn("vllm.log", "has no line 'GPU KV cache size': the number of KV blocks is unknown")
    if (connector := facts.get("connector")) and "cpu_bytes" not in facts:
        text = f"KV connector {connector} without cpu_bytes_to_use: whether KV was offloaded to the CPU is unknown"
        findings.warn("vllm.log", text)
    return EngineLog(**facts, findings=tuple(findings))


def _search(line: bytes, facts: JsonObject, unread: dict[str, int]) -> None:
    """Add the line's facts to `facts`, and count in `unread` those that are not numbers."""
    for name, sign, pattern, read in _PATTERNS:
        if name in facts or sign not in line:
            continue
        if match := pattern.search(line.decode("utf-8", "replace")):
            value = read(*match.groups())
            if value is None:
                unread[name] = unread.get(name, 0) + 1
            else:
                facts[name] = value


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Every line's first LONGEST_LINE bytes, and whether that is the whole line."""
    while line := file.readline(LONGEST_LINE):
        complete = line.endswith(b"\n") or len(line) < LONGEST_LINE
        yield line, complete
        while not complete:
            rest = file.readline(LONGEST_LINE)
            complete = not rest or rest.endswith(b"\n")
