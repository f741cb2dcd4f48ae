"""RUN/ideas: a folder for each idea of a research loop, with its hypothesis, its program, and what was found out.

All of it follows from the journal, so that a resumed run and a replay write the same files. They hold no path: their
commands are for the run's folder. What models wrote is quoted and named as theirs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from archive.elite import SEED, Elite
from archive.proposal import MODEL, Outcome
from evolve.output.columns import figures, words
from evolve.output.printing import Block, Code, page
from evolve.output.table import Table
from evolve.run.folder import START
from evolve.run.program import seed_texts
from evolve.summary.finding import change
from evolve.summary.research import Research, generation, prose, title_of, whole_idea
from simulator.common.files import plain_folder, write_text
from simulator.common.text import plain

FOLDER = "ideas"
HYPOTHESIS, PROGRAM, FINDINGS = "HYPOTHESIS.md", "program.py", "FINDINGS.md"
LONGEST_SLUG = 40  # characters of a title in a folder's name
LONGEST_WHY = 600  # characters of why an idea was refused

# What a model cites: each thing, and its place in the user's library or that it is unchecked.
Cited = Callable[[str], Sequence[str]]


def write_ideas(run: Path, research: Research, cited: Cited) -> None:
    """Write the folders of all ideas of a run."""
    folder = plain_folder(run / FOLDER, make=True)
    # how a command names a program: those of ideas by their files, and the user's own that the search started from
    shipped = dict(seed_texts())
    names: dict[int | str, str] = {
        path.stem[4:]: f"{START}/{path.name}"
        for path in (run / START).glob("*.py")
        if path.read_text() != shipped.get(path.stem[4:])  # a replay keeps the shipped ones, too
    }
    for versions in _versions(research.ideas):
        last = versions[-1].proposal
        name = "-".join(filter(None, (f"{last.id:03d}", _slug(title_of(last.idea)))))
        names |= {o.proposal.id: f"{FOLDER}/{name}/{PROGRAM}" for o in versions}
        own = plain_folder(folder / name, make=True)
        for file, text in files_of(versions, research, names, cited).items():
            write_text(own / file, text)


def _versions(ideas: Iterable[Outcome]) -> list[list[Outcome]]:
    """The versions of each idea: what was proposed first and, if it was sent back, then. One question asks for both."""
    return [list(group) for _, group in groupby(ideas, key=lambda o: o.proposal.call.split("/")[0::2])]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower())[:LONGEST_SLUG].strip("-")


def files_of(
    versions: Sequence[Outcome], research: Research, names: Mapping[int | str, str], cited: Cited
) -> dict[str, str]:
    """The files of an idea by name. names: see write_ideas."""
    last = versions[-1]
    files = {
        HYPOTHESIS: page(_hypothesis(versions, research, cited)),
        FINDINGS: page(_findings(last, research, names)),
    }
    return files | ({PROGRAM: last.proposal.text} if last.proposal.text else {})


def _hypothesis(versions: Sequence[Outcome], research: Research, cited: Cited) -> list[Block]:
    last = versions[-1]
    p, base = last.proposal, research.base(last.proposal)
    blocks: list[Block] = [f"# Idea {p.id}: {title_of(p.idea) or 'no title'}"]
    blocks.append(
        f"By {p.operator.removeprefix(MODEL)}. Quoted texts are the model's, unchecked. A, D1 and program numbers are "
        f"those of its question: `evolve llm prompt . {p.id} --sent`, in the run's folder."
    )
    blocks += _quoted(last, cited)
    issues = dict(enumerate(research.issues(generation(p)), 1))
    answers = prose(p.motivation).answers.items()  # what else a model answers was not asked
    if lines := [f'Issue {n}, {issues[n].line}. Answer: "{answer}"' for n, answer in answers if n in issues]:
        blocks += ["**Answers to the judges**", lines]
    if base and p.text and not _unreadable(last):
        blocks.append(
            f"**What the program does**, compared with {_name(base)}: it {change(base.program, p.program).text}."
        )
    for earlier in versions[:-1]:
        why = earlier.rejection.why if earlier.rejection else ""
        blocks += [
            "## Sent back before a fit",
            f"Proposal {earlier.proposal.id}: {plain(why, LONGEST_WHY)}",
            *_quoted(earlier, cited),
        ]
    return blocks


def _quoted(outcome: Outcome, cited: Cited) -> list[Block]:
    p = outcome.proposal
    about = prose(p.motivation)
    parts = {
        "Idea": whole_idea(p.idea),
        "Hypothesis": about.hypothesis,
        "Expected": about.expect,
        "Why": about.why,
        "Related work": about.work,
    }
    blocks: list[Block] = [f'**{name}.** "{text}"' for name, text in parts.items() if text]
    if about.work:
        blocks.append([*cited(about.work)])
    return blocks


def _unreadable(outcome: Outcome) -> bool:
    return bool(outcome.rejection and outcome.rejection.stage in ("answer", "parse"))


def _findings(outcome: Outcome, research: Research, names: Mapping[int | str, str]) -> list[Block]:
    p, elite, found = outcome.proposal, outcome.elite, research.findings.get(outcome.proposal.id)
    head: list[Block] = [f"# Findings on idea {p.id}: {title_of(p.idea) or 'no title'}"]
    if outcome.rejection or elite is None or found is None:
        why = outcome.rejection
        return [
            *head,
            f"**Conclusion.** Refused at {why.stage}: {plain(why.why, LONGEST_WHY)}" if why else "",
            *_reviews(outcome),
        ]
    base = research.base(p)
    assert base
    dropped = ", ".join(f"`{name}`" for name in outcome.dropped)
    same = research.same_form(p.id)
    return [
        *head,
        f"**Conclusion.** {found.conclusion}",
        "" if elite.consistent else f"`evolve show .:{p.id} --check --physics` says what.",
        f"The fit left the {same}." if same else "",
        f"The fit dropped: {dropped}." if dropped else "",
        errors_table([(f"idea {p.id}", elite), (f"A: {_name(base)}", base), *_seed(research, base)]),
        cells_table(elite.cells, base.cells, research.hidden),
        rows_table(elite, base),
        *_reviews(outcome),
        f"All figures are those of the journal (reviews: `evolve show .:{p.id} -v`). To compute errors and constants "
        "again, in the run's folder:",
        Code(repeated(p.id, base, names), "sh"),
        "The program as fitted:",
        Code(elite.text.rstrip(), "python"),
    ]


def _seed(research: Research, base: Elite) -> list[tuple[str, Elite]]:
    seed = research.seed
    return [(f"best {_name(seed)}", seed)] if seed and seed.id != base.id else []


def repeated(idea: int, base: Elite, names: Mapping[int | str, str]) -> str:
    """The command that repeats the figures of an idea, and those of the program that it changed."""
    seed = base.operator.removeprefix(SEED) if base.operator.startswith(SEED) else ""
    against = names.get(seed, seed) if seed else names.get(base.id, f".:{base.id}")
    return shlex.join(["evolve", "show", names[idea], "--assess", ".", "--against", against, "-v"])


def _name(elite: Elite) -> str:
    if elite.operator.startswith(SEED):
        return f"seed `{elite.operator.removeprefix(SEED)}`"
    return f"program {elite.id}"


def errors_table(rows: Iterable[tuple[str, Elite]]) -> Table:
    """The errors and the size of programs, (name, program)."""
    columns = [
        words("program"),
        figures(".2f", "group-out", "mean error", "E2E", "TTFT", "ITL", "worst-3 E2E"),
        words("size", "consistent"),
    ]
    cells = (
        (
            name,
            *(e.group_out, e.mean_error, e.score.e2e, e.score.ttft, e.score.itl, e.worst3),
            *(f"{e.operations}+{e.constants}", "yes" if e.consistent else "no"),
        )
        for name, e in rows
    )
    return Table.of("Errors in percent; size: operations + constants", columns, cells)


def cells_table(
    ours: Sequence[tuple[str, float]], theirs: Sequence[tuple[str, float]], hidden: Collection[str] = frozenset()
) -> Table:
    """The leave-group-out errors of two programs, cell by cell; those that no question showed are marked."""
    known = dict(theirs)
    rows = [
        (f"{name} (hidden)" if name in hidden else name, error, known[name], error - known[name])
        for name, error in ours
        if name in known
    ]
    columns = [words("cell"), figures(".2f", "idea", "A"), figures("+.2f", "difference")]
    return Table.of("Leave-group-out errors of cells in percent", columns, rows)


def rows_table(ours: Elite, theirs: Elite) -> Table:
    """The errors in sample of two programs: signed ones of replayed runs, mean absolute ones of cells of others."""
    known = {row.experiment: row for row in theirs.score.rows}
    rows = [
        (row.experiment, *(x for pair in zip(row.figures, known[row.experiment].figures, strict=True) for x in pair))
        for row in ours.score.rows
        if row.experiment in known
    ]
    heads = [f"{name} {of}" for name in ("E2E", "TTFT", "ITL") for of in ("idea", "A")]
    caption = "Runs at a rate: signed, predicted - observed. Cells of other runs: mean absolute errors."
    return Table.of("Errors in sample in percent", [words("runs"), figures("+.1f", *heads)], rows, caption)


def _reviews(outcome: Outcome) -> list[Block]:
    reviews = outcome.proposal.reviews
    if not reviews:
        return []
    lines = [
        f"{r.judge}: {', '.join(f'{name} {mark}' for name, mark in r.marks)} (mean {r.mean:.1f})"
        + (f': "{r.remark}"' if r.remark else "")
        for r in reviews
    ]
    return ["**Reviews**, marks of 10; remarks are the judges'.", lines]
