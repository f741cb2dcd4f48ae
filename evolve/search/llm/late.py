"""Programs that language models proposed when the budget of candidates was full: paid for, and no candidates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from archive.proposal import is_outcome
from evolve.run.folder import RunFolder
from evolve.search.llm.answer import proposed
from evolve.search.llm.call_log import call_log
from evolve.search.llm.calls import proposes
from simulator.common.json import JsonObject


@dataclass(frozen=True, slots=True)
class Late:
    """The programs of an answer that are beyond the budget, and their share of what the answer cost."""

    programs: int
    usd: float


def beyond_budget(run: RunFolder) -> dict[str, Late]:
    """The programs beyond a run's budget, by the name of the call; none while the budget is not full.

    They are in answers of the last generation that asked, and have no outcome. An answer's programs have their outcomes
    in order, so those without one are its last.
    """
    fitted, used, calls = 0, Counter[str](), list[JsonObject]()
    for line in run.each_line():
        if is_outcome(line):
            fitted += bool(line.get("key"))
            used[line.get("call", "")] += 1
        else:
            calls.append(line)
    if fitted < run.config.budget:
        return {}
    log = call_log(calls)
    asked = {name: answer for name, answer in log.answers.items() if proposes(name.split("/")[1])}
    last = max((_generation(name) for name in asked), default=0)
    most = min(run.config.llm.programs, run.config.search.batch)
    found = {}
    for name, answer in asked.items():
        if _generation(name) == last:
            given = proposed(log.text(name), most)
            left = max(given - used[name], 0)
            if left:
                found[name] = Late(left, 0.0 if answer.cached else answer.usd * left / given)
    return found


def _generation(call: str) -> int:
    return int(call.split("/")[0])
