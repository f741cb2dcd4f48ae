"""kv_events.jsonl: the KV-block events that the engine published.

A line is `[ts, [event, ...], data_parallel_rank, scheduler_step]`; an event is an array that begins with its type. `ts`
is when the batch was published, in epoch seconds. This server never fills the step of a batch; events that have a step
carry it themselves.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evolve.ingest.read.values import json_lines
from simulator.common.json import JsonObject

MALFORMED = "malformed batches or events, dropped"
UNKNOWN = "events of unknown types, kept as `other`"
TWICE = "duplicate transfer events in a batch, dropped"
BACKWARDS = "batches with an earlier time than the previous one, kept: several files in one, or was the clock set?"

LONGEST_NAME = 200
LOW_64 = 2**64 - 1
OTHER = "other"


class KvEvent(NamedTuple):
    """One event; None for fields that its type does not have.

    `hashes` and `parent` are the low 64 bits of block hashes. `tokens` is the number of listed token ids; the ids
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
    """Every event of the file in order."""
    latest = float("-inf")
    for number, line in enumerate(json_lines(path, tally, on_read)):
        if not (isinstance(line, list) and len(line) >= 2 and _is_time(line[0]) and isinstance(line[1], list)):
            tally[MALFORMED] += 1
            continue
        tally[BACKWARDS] += line[0] < latest
        latest = float(line[0])
        rank = line[2] if len(line) > 2 and type(line[2]) is int and 0 <= line[2] < 2**31 else None
        seen: set[tuple[str, int | None]] = set()
        for raw in line[1]:
            event = _event(raw, number, latest, rank)
            if event is None:
                tally[MALFORMED] += 1
                continue
            tally[UNKNOWN] += event.type == OTHER
            if event.transfer is not None and (event.type, event.transfer) in seen:
                tally[TWICE] += 1
            else:
                seen.add((event.type, event.transfer))
                yield event


def _event(raw: Any, batch: int, ts_s: float, rank: int | None) -> KvEvent | None:
    """The event in an array; its type is OTHER if that is unknown. None for an array that has not its type's form."""
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], str):
        return None
    try:
        fields = _fields(raw[0], raw[1:])
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return KvEvent(batch, ts_s, rank, OTHER) if fields is None else KvEvent(batch, ts_s, rank, raw[0], **fields)


def _fields(kind: str, r: list[Any]) -> JsonObject | None:
    """The fields of an event from the values `r` after its type; None for an unknown type.

    Raises TypeError, ValueError, IndexError or OverflowError if a value is missing or of the wrong form.
    """
    match kind:
        case "BlockStored":
            hashes, parent = _hashes(r[0]), None if r[1] is None else _low_64(r[1])
            stored = {"hashes": hashes, "blocks": len(hashes), "parent": parent, "medium": _text(_at(r, 5))}
            return {**stored, "tokens": len(_list(r[2])), "block_size": _whole(r[3])}
        case "BlockRemoved":
            hashes = _hashes(r[0])
            return {"hashes": hashes, "blocks": len(hashes), "medium": _text(_at(r, 1))}
        case "AllBlocksCleared":
            return {}
        case "CacheStoreCommitted" | "CacheLoadCommitted":
            return {"request": _text(r[0]), "medium": _text(r[1]), "blocks": _whole(r[2]), "step": _whole(r[3])}
        case "CacheEviction":
            evicted = {"medium": _text(r[0]), "blocks": _whole(r[1]), "reason": _text(r[2]), "step": _whole(r[3])}
            return {**evicted, "hashes": _hashes(r[4]) if isinstance(_at(r, 4), list) else ()}
        case "TransferInitiated" | "TransferCompleted":
            ends = {"request": _text(r[1]), "source": _text(r[2]), "medium": _text(r[3])}
            return {"transfer": _whole(r[0], 2**62), **ends, "blocks": _whole(r[4]), **_outcome(r[5:])}
        case "RemoteTransferInitiated" | "RemoteTransferCompleted":
            ends = {"request": _text(r[1]), "source": f"rank {_whole(r[3])}", "medium": f"rank {_whole(r[4])}"}
            about = {"transfer": _whole(r[0], 2**62), "reason": _text(r[2]), "blocks": _whole(r[5])}
            return {**about, **ends, **_outcome(r[6:])}
    return None


def _outcome(r: list[Any]) -> JsonObject:
    """`success` and `step` from the end of an event: only completed transfers have a flag before the step."""
    success = r[0] if r and isinstance(r[0], bool) else None
    steps = [x for x in r if type(x) is int]
    return {"success": success, "step": _whole(steps[0]) if steps else None}


def _low_64(value: Any) -> int:
    """The low 64 bits of a block hash, written as a whole number or as a digest in base64."""
    if type(value) is int:
        return value & LOW_64
    if not isinstance(value, str):
        raise TypeError(value)
    return int.from_bytes(base64.b64decode(value, validate=True), "big") & LOW_64


def _at(r: list[Any], i: int) -> Any:
    """A value that later releases have added; None if it is missing."""
    return r[i] if len(r) > i else None


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _hashes(value: Any) -> tuple[int, ...]:
    return tuple(map(_low_64, _list(value)))


def _is_time(value: Any) -> bool:
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
