"""The page as one HTML text: style, scripts, data and the policy that lets nothing else run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from evolve import __version__
from simulator.common.errors import InputError
from simulator.common.json import JsonObject

GENERATOR = '<meta name="generator" content="evolve view'  # begins the mark of an export
MISSING = "cannot show the page: plotly is missing. Install the extra: pip install 'evolve-latency[view]'."
_PLACE = re.compile(r"\{\{(policy|style|plotly|script|data)\}\}")


@dataclass(frozen=True, slots=True)
class Page:
    """The parts of the page that are the same for all runs."""

    template: str
    style: str
    plotly: str
    script: str

    @property
    def policy(self) -> str:
        """The Content-Security-Policy: the two scripts, the page's own data, and nothing else."""
        hashes = " ".join(f"'sha256-{_digest(text)}'" for text in (self.plotly, self.script))
        return (
            f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'"
        )

    def live(self) -> str:
        """The page that a server sends, with `policy` as a header."""
        return self._filled("", "")

    def export(self, data: bytes) -> str:
        """The page with its data, packed by `pack`."""
        policy = f'<meta http-equiv="Content-Security-Policy" content="{self.policy}">'
        mark = f'{GENERATOR} {__version__}">'
        packed = base64.b64encode(data).decode()
        element = f'<script type="application/octet-stream;base64" id="data">{packed}</script>'
        return self._filled(f"{policy}\n{mark}", element)

    def _filled(self, policy: str, data: str) -> str:
        parts = {"policy": policy, "style": self.style, "plotly": self.plotly, "script": self.script, "data": data}
        # in one go, because what is filled in may hold braces too
        return _PLACE.sub(lambda place: parts[place[1]], self.template)


@cache
def page() -> Page:
    """The page's parts. Raises InputError without plotly."""
    folder = resources.files("evolve.draw.view") / "page"
    return Page(
        (folder / "index.html").read_text("utf-8"),
        _joined(folder, ".css"),
        inert(_plotly()),
        inert(_joined(folder, ".js")),
    )


def inert(script: str) -> str:
    r"""A script without text that would end its script element, or begin a comment in it.

    >>> inert("'</script><!--'")
    "'\\x3C/script>\\x3C!--'"
    """
    return re.sub(r"<(?=/script|!--)", r"\\x3C", script, flags=re.IGNORECASE)


def pack(document: JsonObject) -> bytes:
    """The document as JSON, compressed. Raises ValueError for a number that is not finite."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), 9, mtime=0)


def packed_size(data: bytes) -> int:
    """The characters that packed data takes in an export."""
    return 4 * ((len(data) + 2) // 3)


def _plotly() -> str:
    # as plotly.offline.get_plotlyjs reads it, without what its import costs
    try:
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        raise InputError(MISSING) from None


def _joined(folder: Traversable, suffix: str) -> str:
    files = sorted((file for file in folder.iterdir() if file.name.endswith(suffix)), key=lambda file: file.name)
    return "\n".join(file.read_text("utf-8") for file in files)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
