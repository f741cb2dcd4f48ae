"""Secrets of the environment: kept from processes that need none, and out of texts of others that we keep or show."""

from __future__ import annotations

import os
import re
from array import array
from base64 import b64encode
from collections.abc import Iterator
from itertools import chain
from string import ascii_lowercase, ascii_uppercase
from urllib.parse import quote

NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|JWT", re.IGNORECASE)  # of variables with secrets
FOLDERS = re.compile(r"_DIR$", re.IGNORECASE)  # of those, variables with paths: litellm sets one to a path of words
PIECE = 8  # characters of a secret that hide; hiding fewer would hide ordinary words
HEX, BASE64 = 2 * PIECE, 4 * PIECE // 3  # characters that so many surely fill if they are encoded
PARTS = (re.compile(r"\S+"), re.compile(r"[0-9A-Za-z]+"))  # of a text, all that is between them left out
LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # changes no length, unlike str.lower


def without_secrets() -> dict[str, str]:
    """The environment of this process for one that asks no language model: without what is named like a secret."""
    return {name: value for name, value in os.environ.items() if not NAMES.search(name)}


def redact(text: str) -> str:
    """The text without the secrets of the environment, and without bearer tokens. The time is linear in its length.

    Any PIECE characters of a secret are found: forwards and backwards, percent-encoded, in hex and base64, in either
    case, with spaces or signs between them.
    """
    named = ((name, value) for name, value in os.environ.items() if NAMES.search(name))
    values = {value.strip() for name, value in named if not FOLDERS.search(name)}
    # the longest first, since one may be part of another
    secrets = sorted((value for value in values if len(value) >= PIECE), key=len, reverse=True)
    for secret in secrets:
        text = text.replace(secret, "[key]")
    for part in PARTS if secrets else ():
        text = _without_pieces(text, secrets, part)
    return re.sub(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}", r"\1[key]", text)


def _forms(secret: str) -> Iterator[tuple[str, int]]:
    """The ways to write a secret, each with the length of its pieces that hide."""
    for s in (secret, secret[::-1]):
        yield from ((s, PIECE), (quote(s, safe=""), PIECE), (re.sub(r"\W|_", lambda m: f"%{ord(m[0]):02x}", s), PIECE))
        yield s.encode().hex(), HEX
        for before in range(3):  # bytes in front of it, of which base64 takes three at a time
            yield b64encode(bytes(before) + s.encode()).decode(), BASE64


def _without_pieces(text: str, secrets: list[str], part: re.Pattern[str]) -> str:
    def parts_of(text: str) -> str:
        return "".join(part.findall(text)).translate(LOWER)

    forms = {(parts_of(s), size) for secret in secrets for form, size in _forms(secret) for s in (form, form[::-1])}
    pieces = {form[i : i + size] for form, size in forms for i in range(len(form) - size + 1)}
    heads, parts = {piece[:PIECE] for piece in pieces}, parts_of(text)
    covered = bytearray(len(parts))
    for i in range(len(parts) - PIECE + 1):
        if parts[i : i + PIECE] in heads:
            for size in (PIECE, BASE64, HEX):
                if (piece := parts[i : i + size]) in pieces:
                    covered[i : i + len(piece)] = b"\x01" * len(piece)
    if not any(covered):
        return text
    places = array("L", chain.from_iterable(range(*m.span()) for m in part.finditer(text)))
    kept, end = list[str](), 0
    for run in re.finditer(rb"\x01+", covered):
        kept += [text[end : places[run.start()]], "[key]"]
        end = places[run.end() - 1] + 1
    return "".join([*kept, text[end:]])
