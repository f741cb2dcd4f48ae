"""What is registered with the host, and the refusal where a file of the host is not as an edit expects it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.common.errors import InputError
from translate_go.clone.scan import GoFile, Unreadable

Facts = Literal["host", "table", "baked", "none"]
BUILT_IN = ("roofline", "trained-physics")  # the host's own backends


@dataclass(frozen=True)
class Backend:
    """A backend to register: `registered` for --latency-model, `exported` and `private` as Go spells it.

    command: the host's command line that runs it. facts: where those of its deployment are from: the host's
    configuration of model and GPU, a table in the code, one deployment in the code, or none are read. settings: the
    engine settings that its options hold, as fields of the options type. option: the Go of the host's Option that
    passes them, whose field of latencyOptions is `private`.
    """

    registered: str
    exported: str
    private: str
    command: str
    facts: Facts = "none"
    settings: tuple[str, ...] = ()
    option: str = ""

    @property
    def wired(self) -> bool:
        """Whether the command has to read the model's config and the hardware table for it."""
        return self.facts == "host"

    @property
    def quoted(self) -> str:
        """The registered name as a Go string."""
        return f'"{self.registered}"'


def moved(path: str, sought: str) -> InputError:
    """The refusal: this file has no such place."""
    return InputError(
        f"{path}: has no {sought}: this host is not as --into expects it; emit with --out, and follow INTEGRATION.md"
    )


def already(path: str, backend: Backend) -> InputError:
    """The refusal of a name that is there."""
    return InputError(
        f"{path}: already has a backend {backend.quoted}: choose another --name, or work on a branch without"
    )


def read(path: str, text: str) -> GoFile:
    """The file as tokens. Raises InputError for a file that is not Go."""
    try:
        return GoFile(text)
    except Unreadable as e:
        raise moved(path, f"readable Go ({e})") from None


def edited(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    """The text with each of its pieces text[start:end] replaced."""
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text
