"""Proposals by a tool call, for models that have tools: their arguments become the text that other models answer with.

So an answer is read, kept in the journal and shown in later rounds in one form, whichever way it came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from simulator.common.json import JsonObject

NAME = "propose"
_TEXT = {"type": "string"}
TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Have programs fitted and scored. Each is a whole program, or changes of program A.",
        "parameters": {
            "type": "object",
            "properties": {
                "proposals": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "title": {"type": "string", "description": "the idea and the mechanism in one sentence"},
                            "motivation": {
                                "type": "string",
                                "description": "why it should help; lines of related work, and of answers to issues",
                            },
                            "program": {"type": "string", "description": "the whole program"},
                            "changes": {
                                "type": "array",
                                "description": "instead of a program: lines of program A, and lines in their place",
                                "items": {
                                    "type": "object",
                                    "properties": {"search": _TEXT, "replace": _TEXT},
                                    "required": ["search", "replace"],
                                },
                            },
                        },
                        "required": ["title"],
                    },
                }
            },
            "required": ["proposals"],
        },
    },
}
SIZE = len(json.dumps(TOOL))  # bytes that it adds to a request


def as_text(arguments: Iterable[str]) -> str:
    """The proposals in the arguments of tool calls, in the form of a plain answer.

    Arguments that are no such JSON are kept as they are, so that what is wrong with them is said like for any answer.
    """
    sections: list[str] = []
    for raw in arguments:
        try:
            proposals = json.loads(raw)["proposals"]
            sections += [_section(len(sections) + 1 + i, proposal) for i, proposal in enumerate(proposals)]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            sections.append(raw)
    return "\n".join(sections)


def _section(number: int, proposal: JsonObject) -> str:
    heading = f"### Proposal {number}: {' '.join(str(proposal.get('title', '')).split())}"
    if proposal.get("motivation"):
        heading += f"\n\n{_lines(str(proposal['motivation']))}"
    if proposal.get("changes"):
        blocks = [_block(change["search"], change["replace"]) for change in proposal["changes"]]
        return "\n".join([heading, "", "```", *blocks, "```", ""])
    return f"{heading}\n\n```python\n{_lines(str(proposal.get('program', '')))}\n```\n"


def _block(search: str, replace: str) -> str:
    return "\n".join(["<<<<<<< SEARCH", _lines(search), "=======", _lines(replace), ">>>>>>> REPLACE"])


def _lines(text: str) -> str:
    return text.strip("\n")
