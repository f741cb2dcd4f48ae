"""Pages of Markdown: nothing that a file or a language model says becomes HTML, a link, a picture, or another cell."""

from __future__ import annotations

import pytest

from evolve.output.columns import words
from evolve.output.printing import Code, markdown, page
from evolve.output.table import Table
from simulator.common.text import inert

# What Markdown would obey, and as what it is written.
ACTIVE = {
    "<script>alert(1)</script>": r"\<script>alert(1)\</script>",
    r"\<script>": r"\\\<script>",
    "<img src=x onerror=alert(1)>": r"\<img src=x onerror=alert(1)>",
    "<!-- x": r"\<!-- x",
    "<javascript:alert(1)>": r"\<javascript:alert(1)>",
    "[x](javascript:alert(1))": r"[x\](javascript:alert(1))",
    "![x](http://example.com/seen.png)": r"![x\](http://example.com/seen.png)",
    "[x][y]": r"[x\][y]",
    "[y]: javascript:alert(1)": r"[y\]: javascript:alert(1)",
    r"[x\](y)": r"[x\\\](y)",
    "a\n# b": r"a\n# b",
}
PLAIN = ("a < b", "experiments[].id", "[0, 1]", "`b.tokens` * 2", "3 <4", "a\\b", "**bold**")


@pytest.mark.parametrize("text", ACTIVE)
def test_what_is_active_is_escaped_everywhere(text: str) -> None:
    shown = ACTIVE[text]
    table = Table.of("", [words("name", text)], [[text, "1"]], text)
    assert inert(text) == shown and page([text, [text, text]]) == f"{shown}\n\n- {shown}\n- {shown}\n"
    assert page([table]) == f"| name | {shown} |\n| --- | --- |\n| {shown} | 1 |\n\n{shown}\n"


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_stays(text: str) -> None:
    assert inert(text) == text


def test_bars_stay_in_their_cell() -> None:
    assert "| \\<b\\|c> | 1 |" in markdown(Table.of("", [words("a", "b")], [["<b|c>", "1"]]))


def test_code_does_not_leave_its_block() -> None:
    assert page([Code("a\n```\n<script>", "python"), "", []]) == "````python\na\n```\n<script>\n````\n"
    assert page([Code("a < b[0](1)", "sh")]) == "```sh\na < b[0](1)\n```\n"
