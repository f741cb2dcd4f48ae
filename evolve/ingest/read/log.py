"""vllm.log: facts that the engine logged about itself at startup, each from the first line that states it.

Lines are `<date time> <LEVEL> <logger>: <message>`, with the messages of vLLM 0.15.1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from evolve.ingest.read.values import FolderFindings
from simulator.common.errors import reason
from simulator.common.json import JsonObject

BLOCK_SIZE = 16  # tokens per block in the log's own count, independent of --block-size
LONGEST_LINE = 64 * 1024  # bytes of a line that are searched; the line with the engine's configuration has about 3 kB
DTYPE_BYTES = {"float32": 4, "float": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}
"""Bytes of one KV cache element by `kv_cache_dtype`, or by `dtype` if that is auto; 2 for any other type."""


@dataclass(frozen=True, slots=True)
class EngineLog:
    """The facts of one engine's log; None where no line states them.

    `kv_cache_tokens` is the size of the GPU's KV cache. `cpu_bytes` is the CPU memory for KV offload over all ranks.
    `shape` is that of the cross-layer cache: blocks, layers, 2, block size and KV heads per rank in either order, head
    dim. `connector` is the class that moves KV out of the GPU. `drafts` is vLLM's own text of speculative decoding.
    """

    kv_cache_tokens: int | None = None
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
    drafts: str | None = None

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
        """True if KV was offloaded to the CPU; None if the log does not say it, or names another connector."""
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


def _bytes(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _is_on(word: str) -> bool:
    return word in ("enabled", "True")


# Fields of EngineLog: the function that reads a text, bytes in every line with it, and the pattern of the text.
# Repetitions of digits are bounded, so that no line yields an unmanageable number.
_FACTS: tuple[tuple[str, Callable[[str], Any], bytes, str], ...] = (
    ("kv_cache_tokens", _count, b"KV cache size", r"GPU KV cache size:\s+([\d,]{1,20})\s+tokens"),
    ("cpu_bytes", _bytes, b"cpu_bytes", r"cpu_bytes_to_use['\"]?\s*:\s*([\d.]{1,30}(?:[eE][+-]?\d{1,3})?)"),
    (
        "shape",
        lambda text: tuple(map(int, text.split(", "))),
        b"cross layer",
        r"cross layer KV cache of shape \((\d{1,9}(?:, \d{1,9}){5})\)",
    ),
    ("async_scheduling", _is_on, b"Asynchronous", r"Asynchronous scheduling is (enabled|disabled)"),
    ("version", str, b"LLM engine (v", r"LLM engine \(v([\w.+-]{1,40})\)"),
    ("version", str, b"server version", r"vLLM API server version v?(\d[\w.+-]{0,39})"),
    ("prefix_caching", _is_on, b"enable_prefix", r"enable_prefix_caching=(True|False)"),
    ("chunked_prefill", _is_on, b"enable_chunked", r"enable_chunked_prefill=(True|False)"),
    ("tensor_parallel", _count, b"tensor_parallel_size", r"tensor_parallel_size=(\d{1,6})\b"),
    ("pipeline_parallel", _count, b"pipeline_parallel_size", r"pipeline_parallel_size=(\d{1,6})\b"),
    ("max_model_len", _count, b"max_seq_len", r"max_seq_len=(\d{1,12})\b"),
    ("dtype", str, b"dtype=torch", r"(?<![\w])dtype=torch\.(\w{1,20})"),
    ("kv_cache_dtype", str, b"kv_cache_dtype", r"kv_cache_dtype=(\w{1,20})"),
    ("connector", str, b"kv_connector", r"kv_connector='(\w{1,60})'"),
    ("drafts", str, b"SpeculativeConfig", r"SpeculativeConfig\((method='\w{1,30}'.{0,300}?num_spec_tokens=\d{1,4})\)"),
)
_PATTERNS = tuple((name, read, sign, re.compile(pattern)) for name, read, sign, pattern in _FACTS)


def read_log(path: Path | None, findings: FolderFindings) -> EngineLog:
    """The facts of a log; none without a log. Anything wrong is added to `findings`."""
    if path is None:
        return EngineLog()
    facts: JsonObject = {}
    unread: Counter[str] = Counter()
    lines = cut = 0
    try:
        with path.open("rb") as file:
            for line, complete in _lines(file):
                lines += 1
                cut += not complete
                _search(line, facts, unread)
    except OSError as e:
        findings.warn("vllm.log", f"cannot be read ({reason(e)}): ignored; check its permissions")
        return EngineLog()
    for name, count in unread.items():
        findings.warn("vllm.log", f"{name} is not a number: ignored", count)
    findings.warn("vllm.log", f"{cut:,} lines longer than {LONGEST_LINE:,} bytes: only their start is searched", cut)
    if not facts:
        findings.warn("vllm.log", f"{lines:,} lines without a known fact about the engine: ignored", max(lines, 1))
    elif "kv_cache_tokens" not in facts:
        findings.warn("vllm.log", "has no line 'GPU KV cache size': the number of KV blocks is unknown")
    if "connector" in facts and "cpu_bytes" not in facts:
        text = f"KV connector {facts['connector']} without cpu_bytes_to_use: KV offload to the CPU is unknown"
        findings.warn("vllm.log", text)
    return EngineLog(**facts)


def _search(line: bytes, facts: JsonObject, unread: Counter[str]) -> None:
    for name, read, sign, pattern in _PATTERNS:
        if name in facts or sign not in line:
            continue
        if match := pattern.search(line.decode("utf-8", "replace")):
            value = read(match[1])
            if value is None:
                unread[name] += 1
            else:
                facts[name] = value


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Every line's first LONGEST_LINE bytes, and True if that is the whole line."""
    while line := file.readline(LONGEST_LINE):
        complete = line.endswith(b"\n") or len(line) < LONGEST_LINE
        yield line, complete
        while not complete:
            rest = file.readline(LONGEST_LINE)
            complete = not rest or rest.endswith(b"\n")
