"""Notes: what a summarising model writes down every few generations, for the prompts that follow."""

from __future__ import annotations

from collections.abc import Sequence

from archive.elite import Elite
from archive.population import Population
from archive.proposal import POLISH, SEED
from evolve.search.llm.calls import Messages
from evolve.search.llm.prompt import bare, complaints, figures
from evolve.search.llm.prose import without_fences
from evolve.search.llm.templates import Templates, fill

LONGEST = 4000  # characters of the notes that are kept
MOST_BEST = 3  # of the best programs, in a question
MOST_LATEST = 24  # of the latest programs


def question(texts: Templates, population: Population, notes: str, latest: Sequence[Elite]) -> Messages:
    """The question to the summariser. `latest` are the programs scored since its previous notes."""
    best = sorted(population.archive.members(), key=lambda e: (population.rule.merit(e), e.id))[:MOST_BEST]
    names = sorted({name for name, _ in population.reached})
    counts = [
        f"- {name}: {', '.join(str(population.reached[name, what]) for what in ('proposals', 'fitted', 'kept'))}"
        for name in names
        if not name.startswith((SEED, POLISH))
    ]
    return (
        (
            "user",
            fill(
                texts["notes"],
                notes=notes or "None yet.",
                best="\n\n".join(f"Program {e.id}: {figures(e)}\n{bare(e.text).strip()}" for e in best),
                proposers="\n".join(counts) or "None yet.",
                complaints="\n".join(f"- {line}" for line in complaints(population.rejected)) or "None.",
                latest="\n".join(_line(e, population) for e in latest[-MOST_LATEST:]) or "None.",
            ),
        ),
    )


def _line(elite: Elite, population: Population) -> str:
    parents = [population.archive.by_id[i] for i in elite.parents if i in population.archive.by_id]
    before = f", from {parents[0].joint:.2f}" if parents else ""
    return f"- program {elite.id} by {elite.operator}: joint {elite.joint:.2f}{before}, worst 3 {elite.worst3:.2f}"


def kept(answer: str) -> str:
    """The notes in an answer: printable lines without fences, at most LONGEST characters."""
    return without_fences(answer)[:LONGEST]
