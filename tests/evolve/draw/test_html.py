"""The page is one text in which only its own two scripts run, whatever a run's files contain."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evolve.draw.view import html
from evolve.draw.view.html import Page, inert, pack, packed_size, page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>{{script}}{{data}}\u202e\x1b"
TEXT = Page(
    "<head>{{policy}}</head><style>{{style}}</style>{{data}}<script>{{plotly}}</script><script>{{script}}</script>",
    "a{}",
    "let b = '{{script}}'",
    "let c = '{{data}}'",
)


def hashed(policy: str) -> set[str]:
    return set(re.findall(r"'sha256-([^']+)'", policy))


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def scripts(text: str) -> list[str]:
    """The contents of the script elements that a browser would run."""
    found = re.findall(r"(?s)<script([^>]*)>(.*?)</script>", text)
    return [body for attributes, body in found if "type=" not in attributes]


def test_the_policy_allows_the_scripts_of_the_page_and_no_others() -> None:
    text = page().export(pack({"a": 1}))
    assert {digest(script) for script in scripts(text)} == hashed(text) == hashed(page().policy)
    assert len(scripts(text)) == 2 and len(scripts(text)[0]) > 1_000_000  # plotly's
    assert scripts(page().live()) == scripts(text)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and "unsafe" not in rules["script-src"] and "*" not in policy


def test_nothing_runs_by_attributes_or_addresses() -> None:
    """Handlers in attributes and evaluated texts are what the policy forbids; the page must not need them."""
    folder = Path(html.__file__).parent / "page"
    source = "\n".join(file.read_text() for file in folder.iterdir() if file.suffix in (".html", ".js"))
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']|javascript:|\beval\(|new Function|innerHTML|document\.write", source)
    assert not re.search(r"https?://(?!www\.w3\.org/)", source)


def test_text_of_a_run_is_inert_in_the_source() -> None:
    document = {"name": HOSTILE, "runs": [{"text": HOSTILE}]}
    text = TEXT.export(pack(document))
    assert HOSTILE not in text and "alert" not in text and "onerror" not in text
    (packed,) = re.findall(r'<script type="application/octet-stream;base64" id="data">([^<]*)</script>', text)
    assert re.fullmatch(r"[A-Za-z0-9+/]+=*", packed) and len(packed) == packed_size(pack(document))
    assert text.count("<script") == 3


def test_scripts_cannot_end_their_element() -> None:
    for text in ("x = '</script>'", "x = '</ScRiPt >'", "x = '<!-- <script>'"):
        assert not re.search(r"(?i)</script|<!--", inert(text))
    assert inert("a < b; c <d; '<svg></svg>'") == "a < b; c <d; '<svg></svg>'"
    assert not re.search(r"(?i)</script|<!--", page().plotly + page().script)
    assert not re.search(r"(?i)</style", page().style)


def test_packing_depends_on_the_document_alone() -> None:
    assert pack({"a": [1.5, None]}) == pack({"a": [1.5, None]})
    with pytest.raises(ValueError):
        pack({"a": float("nan")})


def test_the_command_needs_no_library_of_the_extra_to_be_imported() -> None:
    code = (
        "import json, sys, evolve.cli.view; print(json.dumps([m for m in ('plotly', 'pandas', 'sympy', "
        "'matplotlib', 'litellm') if m in sys.modules]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == []
