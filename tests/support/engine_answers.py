"""Twenty answers of a model to another engine: programs of ours, and among them texts that no search would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from llm_replies import Reply, Request, said
from llm_scripts import HEAD, LOOP, UNITS, program, whole

COUNT = 20  # answers, and iterations of an engine that asks once in each
GOOD = [text for i in range(40) if " if " not in (text := program(Random(i)))]  # `datasheet` allows no conditionals
START = GOOD[0]  # a poor one
REFUSAL = "I would rather not write a program."


def answers(mark: Path) -> list[tuple[str, str]]:
    """The programs of the answers in turn, each with the beginning of its complaint; every third is a bad one.

    Two of these would write the file `mark` if anything executed them.
    """
    write = f"open({str(mark)!r}, 'w').write('executed')"
    loop, units = (text.split("```python\n")[1].removesuffix("```\n") for text in (LOOP, UNITS))
    bad = [
        (f"import os\n{write}\n\n{START}", "parse: "),
        (f"{HEAD}    return floor * {write}\n", "parse: "),
        (f"{HEAD}    return floor{' + weights * b.weight_read_us' * 60}\n", "caps: "),
        (REFUSAL, "parse: "),
        (loop, "parse: "),
        (units, "units: "),
    ]
    return [bad[i // 3] if i % 3 == 2 else (GOOD[1 + i], "") for i in range(COUNT)]


def scripted(mark: Path) -> Callable[[Request], Reply]:
    """A server's script that gives the answers in turn."""
    texts = [text for text, _ in answers(mark)]
    return lambda request: said(REFUSAL if (text := texts[request.number]) == REFUSAL else whole(text))
