"""The texts that models are sent: templates, filled in with the archive's values. They hold no path, run name, or key.

The templates are the files in `prompts/`, or those of a user's folder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from archive.elite import SEED, Elite
from archive.population import Population
from archive.proposal import ENDING, POLISH, Outcome
from evaluator.assess import Scored
from evaluator.diagnose.tables import Listing, whole
from evaluator.ensemble import ensemble
from evolve.output.table import number
from evolve.run.config import Config
from evolve.search.llm.answer import without_fences
from evolve.search.llm.calls import Messages
from evolve.search.llm.documents import NONE, Documents
from evolve.search.llm.terms import worth
from evolve.search.vocabulary import field_set
from evolve.summary.finding import Finding
from evolve.summary.research import Issue
from simulator.common.documents import read_bytes
from simulator.common.errors import InputError
from simulator.common.text import counted, listed, plain
from simulator.language.measure import features
from simulator.language.parse import parse
from simulator.language.simplify import brief, lean
from simulator.language.unparse import unparse
from simulator.schema import FIELDS

Templates = dict[str, str]
TEMPLATES = ("task", "propose", "idea", "gate", "round", "notes", "judge")
FOLDER = "prompts"  # of a run, with its templates

MOST_COMPLAINTS = 8
LONGEST_COMPLAINT = 300  # characters
LONGEST_REFUSAL = 60  # characters of why a proposal was refused, in the list of what was tried
LONGEST_IDEA = 48  # characters of a title in that list
LONGEST_NOTES = 4000  # characters of the notes that are kept
SAME = 50  # complaints whose first characters agree, up to their numbers, are of one kind
MOST_FRONT = 5  # programs of the front that a question lists
MOST_BEST, MOST_LATEST = 3, 24  # of the best and of the latest programs, in a question for notes
MOST_NEAR = 3  # near-optimal programs whose predictions are compared with those of A
MOST_DROPPED = 3  # names of what the fit dropped of an idea
MOST_TOKENS = 6000  # of a question, all in all
# Pieces of text of which a tokenizer makes about one token each.
PIECES = re.compile(r" ?[A-Za-z]{1,11}|[0-9]{1,3}| ?[^\sA-Za-z0-9]{1,2}|\s+")
MORE = re.compile(r"[:;]| \(|\. ")  # what follows in the meaning of a field is left out
DEAD = 1e-9  # constants up to this size change nothing, and are not shown
KINDS = {
    "point": "a point change of A: one term added, removed, replaced, or given another scaling",
    "structural": "a structural change of A: its parts combined otherwise (overlap as max, a regime, a shared factor)",
    "crossover": "a crossover: A with the part of another program above that is better where A is worst",
    "residuals": "informed by the errors above: a mechanism that explains the largest errors on runs left out, and "
    "would be there for any model",
    "simplify": "a simpler program that should be about as good: terms merged or left out",
}
AIMS = {"mean_error": "mean error", "group_out": "group-out error"}  # by archive.champion.Rule.by
ISSUES = (
    "# Issues that judges raised with the latest ideas\n\n",
    "\n\nAnswer every issue by its number in a line `Issue N: ` below the heading of your first proposal: what you\n"
    "change because of it, or why it does not hold.\n\n",
)


# templates


def bundled() -> Templates:
    folder = resources.files("evolve.search.llm").joinpath("prompts")
    return {name: folder.joinpath(f"{name}.md").read_text("utf-8") for name in TEMPLATES}


def load(folder: Path, kept: bool = False) -> Templates:
    """The project's templates, replaced by those in `folder`, which may use the same placeholders.

    kept: it is in a run's folder. Raises InputError if the folder has none, or one that cannot be filled in.
    """
    texts = bundled()
    paths = {name: folder / f"{name}.md" for name in TEMPLATES if (folder / f"{name}.md").is_file()}
    if not paths:
        names = ", ".join(f"{name}.md" for name in TEMPLATES)
        raise InputError(f"cannot read --prompts {folder}: it has none of {names}. Name a folder with one of them.")
    for name, path in paths.items():
        try:
            text = read_bytes(path, kept=kept).decode().replace("\r\n", "\n")
        except (OSError, UnicodeDecodeError) as e:
            raise InputError(f"cannot read {path} as UTF-8 text: {e}. Correct or remove it.") from None
        template, known = Template(text), sorted(Template(texts[name]).get_identifiers())
        if not template.is_valid():
            raise InputError(
                f"cannot read {path}: it has a $ without the name of a placeholder. Write $$ for a dollar."
            )
        if unknown := sorted(set(template.get_identifiers()) - set(known)):
            allowed = ", ".join(f"${name}" for name in known)
            raise InputError(f"cannot fill in ${unknown[0]} of {path}: unknown placeholder. Use {allowed}.")
        texts[name] = text
    return texts


def fill(text: str, **values: str) -> str:
    """The text with its placeholders replaced. A $ inside a value is not a placeholder."""
    return Template(text).substitute(values)


# a question for programs


@dataclass(frozen=True, slots=True)
class Asked:
    """The content of a question: the program to improve, other programs, kinds of proposals, and where it is wrong.

    `meanwhile`: what is asked at the same time; `issues`: the judges' objections to the latest ideas; `settled`: the
    findings that an idea of a research loop must not contradict; `documents`: the user's.
    """

    base: Elite
    others: tuple[Elite, ...]
    kinds: tuple[str, ...]
    diagnosis: tuple[Listing, ...]
    meanwhile: str = ""
    notes: str = ""
    issues: Sequence[Issue] = ()
    settled: Sequence[Finding] = ()
    documents: Documents = NONE


def task(texts: Templates, config: Config) -> str:
    """The part that all questions for programs of a run share."""
    limits = ", ".join(f"at most {most} {name}" for name, most in asdict(config.caps).items())
    fields = fields_text(field_set(config.search.fields))
    return fill(texts["task"], caps=limits, fields=fields, rounds=str(config.llm.rounds))


def fields_text(allowed: Collection[str] | None) -> str:
    """The allowed fields (None: all) with their meanings in short, below a heading for every scope and unit."""
    groups: dict[tuple[str, str], list[str]] = {}
    for f in FIELDS.values():
        if f.scope == "r" or allowed is None or f.key in allowed:
            meaning = "" if "plain" in f.marks else f": {MORE.split(f.meaning, maxsplit=1)[0]}"
            groups.setdefault((f.scope, f.unit), []).append(f"{f.name}{meaning}")
    return "\n".join(f"{scope}. in {unit}\n{'; '.join(lines)}" for (scope, unit), lines in groups.items())


def messages(texts: Templates, config: Config, population: Population, asked: Asked) -> Messages:
    """The messages to a proposing model: the task, and the question to improve a program."""
    base, best = asked.base, population.champion()
    text, champion, rule = bare(base.text), best.id if best else None, population.rule
    issues = "\n".join(f"{i}. {issue.line}" for i, issue in enumerate(asked.issues, 1))
    listings = {
        "diagnosis": asked.diagnosis,
        "others": tuple(Listing(*_other(e, text, champion), ": its text", share=8.0) for e in asked.others)
        or (Listing("There is no other yet."),),
        "front": (front(population.archive.front_by_size()),),
        "terms": worth(population.archive.by_id) or (Listing("None was added alone yet."),),
        "tried": (tried(population),),
        "notes": (Listing("", tuple((asked.notes or "None yet.").splitlines()), share=5.0),),
    }
    values = {
        "program": text.strip(),
        "errors": f"{_name(base, champion)}: {figures(base)}.",
        "aim": f"the simplest program within {100 * rule.within:g} % of the lowest {AIMS[rule.by]}",
        "meanwhile": f"{asked.meanwhile} " if asked.meanwhile else "",
        "issues": f"{ISSUES[0]}{issues}{ISSUES[1]}" if issues else "",
        "programs": str(len(asked.kinds)),
        "kinds": "\n".join(f"- Proposal {i}: {KINDS[kind]}" for i, kind in enumerate(asked.kinds, 1)),
    }
    settled = "\n".join(f"- {finding.line}" for finding in asked.settled) or "None yet."
    idea = f"\n{fill(texts['idea'], settled=settled)}" if config.llm.ideas else ""
    system, empty = task(texts, config), fill(texts["propose"], **values, **dict.fromkeys(listings, "")) + idea
    shown = cut(listings, MOST_TOKENS - tokens(system) - tokens(empty))
    documents = asked.documents.quoted(_about(population, asked), config.llm.library_tokens)
    return (("system", system + documents), ("user", fill(texts["propose"], **values, **shown) + idea))


def _about(population: Population, asked: Asked) -> str:
    """The words by which passages are looked for: fields of the program, its errors, ideas so far, notes."""
    read = features(parse(asked.base.text))
    words = [f"{f.name} {f.meaning}" for f in FIELDS.values() if f"{f.scope}.{f.name}" in read]
    ideas = [outcome.proposal.idea for outcome in population.ideas]
    return "\n".join([*words, *ideas, whole(asked.diagnosis), asked.notes])


def cut(listings: Mapping[str, Sequence[Listing]], room: int) -> dict[str, str]:
    """The listings as texts of at most `room` tokens together, if their headings fit.

    Lines go from the end of the listing that takes most of the room for its share; its text says how many.
    """
    most = {key: [len(listing.lines) for listing in group] for key, group in listings.items()}
    sizes = {(key, i): tokens(x.text(most[key][i])) + 1 for key, group in listings.items() for i, x in enumerate(group)}
    while sum(sizes.values()) > room:
        longer = [(key, i) for key, i in sizes if most[key][i]]
        if not longer:
            break
        key, i = max(longer, key=lambda at: sizes[at] / listings[at[0]][at[1]].share)
        most[key][i] -= 1
        sizes[key, i] = tokens(listings[key][i].text(most[key][i])) + 1  # of the blank line
    return {
        key: "\n\n".join(x.text(n) for x, n in zip(group, most[key], strict=True)).strip()
        for key, group in listings.items()
    }


def tokens(text: str) -> int:
    """About the tokens of a text, rather too many: no tokenizer is asked, because a question must not depend on one."""
    return len(PIECES.findall(text))


def near(population: Population, base: Elite) -> dict[int, str]:
    """The texts of some near-optimal programs other than `base`, by number, the best first."""
    members = ensemble(population.archive.members(), population.rule)
    return {e.id: e.text for e in [e for e in members if e.id != base.id][:MOST_NEAR]}


def bare(text: str) -> str:
    """A program without docstrings, because their text could instruct the model, and without dead constants."""
    program = parse(text)
    alive = program.with_theta(tuple(0.0 if abs(x) <= DEAD else x for x in program.theta))
    short = brief(lean(alive)) if alive.theta != program.theta else program
    return unparse(replace(short, doc="", functions=tuple(replace(f, doc="") for f in short.functions)))


def figures(scored: Elite | Scored) -> str:
    """A program's errors and size, in one line."""
    score = scored.score
    values = (score.worst3, score.mean_error, scored.group_out, score.e2e, score.ttft, score.itl)
    names = ("worst-3 E2E", "mean error", "group-out", "E2E", "TTFT", "ITL")
    errors = ", ".join(f"{name} {number(x, 2, signed=False)}" for name, x in zip(names, values, strict=True))
    size = f"{counted(scored.operations, 'operation')}, {counted(scored.constants, 'constant')}"
    return f"{errors} percent; {size}" + ("" if scored.consistent else ", contradicts the datasheet")


def _name(elite: Elite, champion: int | None) -> str:
    return f"Program {elite.id}" + (", the champion" if elite.id == champion else "")


def _other(elite: Elite, base: str, champion: int | None) -> tuple[str, tuple[str, ...]]:
    """Another program, a title and lines: its lines in place of those of `base`, or all of it if that is shorter."""
    text = bare(elite.text)
    program, values = parse(text), {(f.name, c.name): c.value for f in parse(base).functions for c in f.constants}
    theta = (values.get((f.name, c.name), c.value) for f in program.functions for c in f.constants)
    alike = unparse(program.with_theta(tuple(theta)))  # with the values of A's constants of the same name
    lines = list(unified_diff(base.splitlines(), alike.splitlines(), n=0, lineterm=""))[2:]
    difference = "\n".join(line for line in lines if not line.startswith("@@"))
    title = f"{_name(elite, champion)}: {figures(elite)}."
    if not difference:
        return f"{title} It is A with other constants.", ()
    if len(difference) < len(text):
        return f"{title} Its lines (+) in place of A's (-), with A's constants:", (f"\n```diff\n{difference}\n```",)
    return title, (f"\n```python\n{text.strip()}\n```",)


def front(elites: Sequence[Elite]) -> Listing:
    """A line for each of some programs of the Pareto front, from the simplest to the largest."""
    whole = [e for e in elites if e.consistent and e.group_out is not None] or list(elites)
    step = max((len(whole) - 1) / max(MOST_FRONT - 1, 1), 1.0)
    some = [whole[round(i * step)] for i in range(min(MOST_FRONT, len(whole)))]
    lines = []
    for e in some:
        errors = " ".join(number(value, 2, signed=False) for value in (e.worst3, e.mean_error, e.group_out))
        lines.append(f"{e.id} | {errors} | {e.operations}+{e.constants}")
    return Listing("program | worst-3 E2E, mean error, group-out | operations+constants", tuple(lines), share=2.0)


def tried(population: Population) -> Listing:
    """A line for each of the latest ideas of models, the latest first: the base, and the changes of its errors and
    what the fit dropped, or why it was refused."""
    lines = [_tried(outcome, population.archive.by_id) for outcome in reversed(population.ideas)]
    heading = "idea | base | mean error, group-out" if lines else "Nothing yet."
    return Listing(heading, tuple(lines), ", earlier", share=4.0)


def _tried(outcome: Outcome, known: Mapping[int, Elite]) -> str:
    proposal, elite = outcome.proposal, outcome.elite
    base = known.get(proposal.parents[0]) if proposal.parents else None
    title = f"{plain(proposal.idea, LONGEST_IDEA) or 'no title'} | {base.id if base else '-'}"
    if outcome.rejection:
        return f"{title} | {plain(f'{outcome.rejection.stage}: {outcome.rejection.why}', LONGEST_REFUSAL)}"
    mean_error = group_out = None
    if elite and base:
        mean_error = elite.mean_error - base.mean_error
        if base.group_out is not None and elite.group_out is not None:
            group_out = elite.charged_group_out - base.charged_group_out
    gone = f"; the fit dropped {listed(outcome.dropped, MOST_DROPPED)}" if outcome.dropped else ""
    return f"{title} | {number(mean_error, 2)} {number(group_out, 2)}{gone}"


def verdicts(texts: Templates, lines: Sequence[str], best: str, rounds: int, programs: int) -> str:
    """The message with the verdicts on a round's programs, and the trial of the `best`; what may follow it."""
    known = f"Of the best of these:\n{best}" if best else "None could be scored."
    return fill(texts["round"], verdicts="\n".join(lines), best=known, rounds=str(rounds), programs=str(programs))


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


# notes: the text that a summarising model writes every few generations, for the questions that follow


def notes_question(texts: Templates, population: Population, notes: str, latest: Sequence[Elite]) -> Messages:
    """The question to the summariser. `latest` are the programs scored since its previous notes."""
    best = sorted(population.archive.members(), key=lambda e: (population.rule.selection_score(e), e.id))[:MOST_BEST]
    reached = population.reached
    counts = [
        f"- {name}: {', '.join(str(reached[name, what]) for what in ('proposals', 'fitted', 'kept'))}"
        for name in sorted({name for name, _ in reached})
        if not name.startswith((SEED, *ENDING))
    ]
    text = fill(
        texts["notes"],
        notes=notes or "None yet.",
        best="\n\n".join(f"Program {e.id}: {figures(e)}\n{bare(e.text).strip()}" for e in best),
        proposers="\n".join(counts) or "None yet.",
        complaints="\n".join(f"- {line}" for line in complaints(population.rejected)) or "None.",
        latest="\n".join(_note(e, population) for e in latest[-MOST_LATEST:]) or "None.",
    )
    return (("user", text),)


def _note(elite: Elite, population: Population) -> str:
    parents = [population.archive.by_id[i] for i in elite.parents if i in population.archive.by_id]
    before = f", from {parents[0].mean_error:.2f}" if parents else ""
    errors = f"mean error {elite.mean_error:.2f}{before}, worst-3 E2E {elite.worst3:.2f}"
    return f"- program {elite.id} by {elite.operator}: {errors}"


def notes_in(answer: str) -> str:
    """The notes in an answer: printable lines without fences, at most LONGEST_NOTES characters."""
    return without_fences(answer)[:LONGEST_NOTES]
