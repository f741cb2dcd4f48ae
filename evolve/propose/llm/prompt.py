"""What a proposing model is shown: text made from the archive's values. It holds no path, name of a run, or key."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from archive.champion import Rule
from archive.elite import Elite
from archive.population import Population
from archive.proposal import POLISH, Outcome
from evolve.propose.llm.calls import Messages
from evolve.propose.llm.templates import Templates, fill
from evolve.propose.vocabulary import field_set
from evolve.report.run import rule_text, thinned
from evolve.report.table import number
from evolve.run.config import Config
from simulator.language.measure import Caps
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.schema import FIELDS
from simulator.text import plain

MOST_COMPLAINTS = 8
LONGEST_COMPLAINT = 300  # characters
SAME = 50  # complaints whose first characters agree, up to their numbers, are of one kind
KINDS = {
    "point": "a point change of A: one term added, removed, replaced, or given another scaling",
    "structural": "a structural change of A: its parts combined otherwise (overlap as max, a regime, a shared factor)",
    "crossover": "a crossover: A with the part of another program above that is better where A is worst",
    "residuals": "informed by the residuals: a mechanism that explains the strongest correlation above, and would be "
    "there for any model",
    "simplify": "a simpler program that should be about as good: terms merged or left out",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a question shows: the base that diffs change, its diagnosis, other programs, and the kinds of proposals.

    The front, complaints and notes are the same in all questions of a generation.
    """

    base: Elite
    diagnosis: str
    others: tuple[Elite, ...]
    front: tuple[Elite, ...]
    complaints: tuple[str, ...]
    notes: str
    kinds: tuple[str, ...]


def task(texts: Templates, caps: Caps, allowed: Collection[str] | None, programs: int) -> str:
    """The part that all prompts of a run share. `allowed` are the fields that step_time may read, None for all."""
    limits = ", ".join(f"at most {most} {name}" for name, most in asdict(caps).items())
    return fill(texts["task"], caps=limits, fields=fields_text(allowed), programs=str(programs))


def fields_text(allowed: Collection[str] | None) -> str:
    """A line for every allowed field, with its unit and meaning."""
    lines = []
    for f in FIELDS.values():
        name = f"{f.scope}.{f.name}"
        if f.scope == "r" or allowed is None or name in allowed:
            lines.append(f"- {name} ({f.unit}): {f.meaning}" + (f" = {f.formula}" if f.formula else ""))
    return "\n".join(lines)


def messages(
    texts: Templates,
    config: Config,
    population: Population,
    base: Elite,
    others: Sequence[Elite],
    wanted: Sequence[str],
    diagnosis: str,
    notes: str,
    moe: Collection[str],
) -> Messages:
    """The messages to a proposing model: the task, and the question to improve `base`.

    `wanted` are the kinds of the proposals asked for. `moe` holds the ids of experiments with MoE models.
    """
    front, refused = tuple(population.archive.front_by_size()), complaints(population.rejected)
    shown = Shown(base, diagnosis, tuple(others), front, refused, notes, tuple(wanted))
    system = task(texts, config.caps, field_set(config.search.fields), config.llm.programs)
    return (("system", system), ("user", question(texts, shown, moe, config.score.rule)))


def question(texts: Templates, shown: Shown, moe: Collection[str], rule: Rule) -> str:
    """The part that asks for proposals. `moe` holds the ids of experiments with MoE models."""
    return fill(
        texts["propose"],
        program=bare(shown.base.text).strip(),
        errors=f"Program {shown.base.id}: {figures(shown.base)}.",
        diagnosis=shown.diagnosis.strip(),
        emphasis=emphasis(shown.base, moe),
        others="\n\n".join(_program(e) for e in shown.others) or "There is no other yet.",
        front=front(shown.front),
        rule=rule_text(rule),
        complaints="\n".join(f"- {line}" for line in shown.complaints) or "Nothing yet.",
        notes=shown.notes or "None yet.",
        programs=str(len(shown.kinds)),
        kinds="\n".join(f"- Proposal {i}: {KINDS[kind]}" for i, kind in enumerate(shown.kinds, 1)),
    )


def bare(text: str) -> str:
    """A program without docstrings, because their text could instruct the model."""
    program = parse(text)
    return unparse(replace(program, doc="", functions=tuple(replace(f, doc="") for f in program.functions)))


def figures(elite: Elite) -> str:
    """A program's errors and size, in one line."""
    parts = [f"{label} {number(value, 2, signed=False)}" for label, value in (
        ("worst 3", elite.worst3), ("joint", elite.joint), ("transfer", elite.transfer), ("E2E", elite.e2e),
        ("TTFT", elite.ttft), ("ITL", elite.itl))]  # fmt: skip
    sound = "" if elite.sound else ", contradicts the datasheet"
    return ", ".join(parts) + f" percent; {elite.operations} operations, {elite.constants} constants{sound}"


def _program(elite: Elite) -> str:
    worst = sorted((row for row in elite.rows if row[1] is not None), key=lambda row: -abs(row[1] or 0.0))[:3]
    errors = ", ".join(f"{name} {e2e:+.1f} %" for name, e2e, _, _ in worst)
    worst_text = f" Largest E2E errors: {errors}." if errors else ""
    return f"Program {elite.id}: {figures(elite)}.{worst_text}\n\n```python\n{bare(elite.text).strip()}\n```"


def front(elites: Sequence[Elite]) -> str:
    """A line for each of some programs of the front, from the simplest to the largest."""
    return "\n".join(f"- program {e.id}: {figures(e)}" for e in thinned(elites))


def emphasis(base: Elite, moe: Collection[str]) -> str:
    """A paragraph if the program predicts mixture-of-experts models worse than dense ones; "" otherwise."""
    sizes: dict[bool, list[float]] = {True: [], False: []}
    for name, e2e, _, itl in base.rows:
        error = itl if e2e is None else e2e
        if error is not None:
            sizes[name in moe].append(abs(error))
    if not sizes[True] or not sizes[False] or np.mean(sizes[True]) <= np.mean(sizes[False]):
        return ""
    return (
        f"Mixture-of-experts models are what it predicts worst: {np.mean(sizes[True]):.1f} % on average in E2E, "
        f"{np.mean(sizes[False]):.1f} % for dense models. Which experts a batch touches (b.experts_fraction, "
        "b.expert_read_us), routing, and the many small GEMMs a layer are where to look first."
    )


def complaints(rejected: Iterable[Outcome]) -> tuple[str, ...]:
    """The last rejections that a proposer can learn from, the latest last; only one of those that differ in numbers."""
    lines: dict[str, str] = {}
    for outcome in rejected:
        rejection = outcome.rejection
        if rejection and rejection.stage != POLISH:
            kind = re.sub(r"[\d.,]+", "0", rejection.why)[:SAME]
            lines.pop(kind, None)  # so that the latest of a kind comes last
            lines[kind] = plain(f"{rejection.stage}: {rejection.why}", LONGEST_COMPLAINT)
    return tuple(lines.values())[-MOST_COMPLAINTS:]


def kinds(count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """The kinds of `count` proposals: all kinds in turn, starting from a random one."""
    names = list(KINDS)
    first = int(rng.integers(len(names)))
    return tuple(names[(first + i) % len(names)] for i in range(count))
