"""kv_events.jsonl: what the engine published about its KV blocks, event by event.

A line is `[ts, [event, ...], data_parallel_rank, scheduler_step]`; an event is an array that begins with its type. `ts`
is when the batch was published, in epoch seconds. This server never fills the step of a batch; events that have a step
carry it themselves.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evolve.ingest.read.files import json_lines
from simulator.common.json import JsonObject

MALFORMED = "malformed batches or events, dropped"
UNKNOWN = "events of unknown types, kept as `other`"
TWICE = "duplicate transfer events in a batch, dropped"
BACKWARDS = "batches with an earlier time than the previous one, kept: several files in one, or was the clock set?"

LONGEST_NAME = 200
LOW_64 = 2**64 - 1


class KvEvent(NamedTuple):
    """One event; None for fields that its type does not have.

    `hashes` and `parent` are the low 64 bits of block hashes. `tokens` is how many token ids were listed; the ids
    themselves are prompt text and are not kept. `step` is the scheduler step, of a completed transfer the step in
    which it was initiated.
    """

    batch: int
    ts_s: float
    rank: int | None
    type: str
    request: str | None = None
    step: int | None = None
    medium: str | None = None
    source: str | None = None
    blocks: int | None = None
    hashes: tuple[int, ...] = ()
    parent: int | None = None
    tokens: int | None = None
    block_size: int | None = None
    transfer: int | None = None
    success: bool | None = None
    reason: str | None = None


def read_kv_events(path: Path, tally: Counter[str], on_read: Callable[[int], None]) -> Iterator[KvEvent]:
    """Every event of the file in order. Raises OSError if the file cannot be read."""
    latest = float("-inf")
    for number, line in enumerate(json_lines(path, tally, on_read)):
        if not (isinstance(line, list) and len(line) >= 2 and _number(line[0]) and isinstance(line[1], list)):
            tally[MALFORMED] += 1
            continue
        tally[BACKWARDS] += line[0] < latest
        latest = float(line[0])
        rank = line[2] if len(line) > 2 and type(line[2]) is int and 0 <= line[2] < 2**31 else None
        seen: set[tuple[str, int | None]] = set()
        for raw in line[1]:
            event = _event(raw, number, float(line[0]), rank, tally)
            if event is None:
                tally[MALFORMED] += 1
            elif event.transfer is not None and (event.type, event.transfer) in seen:
                tally[TWICE] += 1
            else:
                seen.add((event.type, event.transfer))
                yield event


def _event(raw: Any, batch: int, ts_s: float, rank: int | None, tally: Counter[str]) -> KvEvent | None:
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], str):
        return None
    kind, rest = raw[0], raw[1:]
    if kind not in _READ:
        tally[UNKNOWN] += 1
        return KvEvent(batch, ts_s, rank, "other")
    try:
        return KvEvent(batch, ts_s, rank, kind, **_READ[kind](rest))
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError):
        return None


def _stored(r: list[Any]) -> JsonObject:
    hashes, parent, tokens, size = _list(r[0]), r[1], _list(r[2]), r[3]
    medium = r[5] if len(r) > 5 else None
    return {
        "hashes": tuple(map(low_64, hashes)), "parent": None if parent is None else low_64(parent),
        "tokens": len(tokens), "block_size": _whole(size), "medium": _text(medium), "blocks": len(hashes),
    }  # fmt: skip


def _removed(r: list[Any]) -> JsonObject:
    hashes = tuple(map(low_64, _list(r[0])))
    return {"hashes": hashes, "blocks": len(hashes), "medium": _text(r[1] if len(r) > 1 else None)}


def _committed(r: list[Any]) -> JsonObject:
    return {"request": _text(r[0]), "medium": _text(r[1]), "blocks": _whole(r[2]), "step": _whole(r[3])}


def _evicted(r: list[Any]) -> JsonObject:
    # The last field is a list of hashes or null.
    hashes = tuple(map(low_64, r[4])) if len(r) > 4 and isinstance(r[4], list) else ()
    return {
        "medium": _text(r[0]),
        "blocks": _whole(r[1]),
        "reason": _text(r[2]),
        "step": _whole(r[3]),
        "hashes": hashes,
    }


def _transfer(r: list[Any]) -> JsonObject:
    ends = {"request": _text(r[1]), "source": _text(r[2]), "medium": _text(r[3])}
    return {"transfer": _whole(r[0], 2**62), **ends, "blocks": _whole(r[4]), **_outcome(r[5:])}


def _remote(r: list[Any]) -> JsonObject:
    ends = {"request": _text(r[1]), "source": f"rank {_whole(r[3])}", "medium": f"rank {_whole(r[4])}"}
    return {"transfer": _whole(r[0], 2**62), **ends, "reason": _text(r[2]), "blocks": _whole(r[5]), **_outcome(r[6:])}


def _outcome(r: list[Any]) -> JsonObject:
    """`success` and `step` from the end of an event: only completed transfers have a flag before the step."""
    success = r[0] if r and isinstance(r[0], bool) else None
    step = next((x for x in r if type(x) is int), None)
    return {"success": success, "step": None if step is None else _whole(step)}


# What turns the fields of an event after its type into those of KvEvent.
_READ: dict[str, Callable[[list[Any]], JsonObject]] = {
    "BlockStored": _stored, "BlockRemoved": _removed, "AllBlocksCleared": lambda r: {},
    "CacheStoreCommitted": _committed, "CacheLoadCommitted": _committed, "CacheEviction": _evicted,
    "TransferInitiated": _transfer, "TransferCompleted": _transfer,
    "RemoteTransferInitiated": _remote, "RemoteTransferCompleted": _remote,
}  # fmt: skip


def low_64(value: Any) -> int:
    """The low 64 bits of a block hash, written as a whole number or as a digest in base64.

    Raises TypeError or ValueError for anything else.
    """
    if type(value) is int:
        return value & LOW_64
    if not isinstance(value, str):
        raise TypeError(value)
    try:
        return int.from_bytes(base64.b64decode(value, validate=True), "big") & LOW_64
    except binascii.Error as error:
        raise ValueError(value) from error


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e12


def _whole(value: Any, most: int = 2**31) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(value)
    return value


def _text(value: Any) -> str | None:
    """A name or None. Raises TypeError for anything else, and for text too long to be a name."""
    if value is not None and not (isinstance(value, str) and len(value) <= LONGEST_NAME):
        raise TypeError(value)
    return value
