"""`evolve show RUN:ID` of a refused proposal: its text, the idea, why it was refused, and the reviews of judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archive.proposal import Outcome, Review
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import prose, show
from evolve.output.table import Table
from evolve.output.terminal import say
from evolve.run.folder import RunFolder
from evolve.run.program import proposal_of
from simulator.common.json import JsonObject


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused proposal of a run."""

    run: RunFolder
    outcome: Outcome

    def to_json(self) -> JsonObject:
        """The refusal as `evolve show --json` prints it; `program` is the proposed text, "" if the answer had none."""
        proposal, rejection = self.outcome.proposal, self.outcome.rejection
        assert rejection
        values: JsonObject = {
            "engine": self.run.about.engine,
            "data": self.run.about.data,
            "seeds": list(self.run.config.score.arrival_seeds),
            "name": f"{self.run.path}:{proposal.id}",
            "refused": {"stage": rejection.stage, "why": rejection.why},
            "program": proposal.text,
            "operator": proposal.operator,
            "parents": list(proposal.parents),
        }
        if proposal.call:
            values |= {
                "call": proposal.call,
                "idea": proposal.idea,
                "reviews": [review.to_json() for review in proposal.reviews],
            }
        return values


def refusal_of(spec: str) -> Refusal | None:
    """The refused proposal that RUN:ID names; None if `spec` names a scored one, or no proposal of a run.

    Raises InputError for a damaged run.
    """
    named = proposal_of(spec)
    return Refusal(*named) if named and named[1].rejection else None


def print_refusal(refusal: Refusal) -> None:
    """Print the text, why it was refused, what proposed it, and the reviews."""
    proposal, rejection = refusal.outcome.proposal, refusal.outcome.rejection
    assert rejection
    say(proposal.text.rstrip("\n") or "(no program in the answer)")
    say()
    prose(f"{refusal.run.path}:{proposal.id}: refused at {rejection.stage}: {rejection.why}")
    parents = f" from {', '.join(map(str, proposal.parents))}" if proposal.parents else ""
    prose(f"By {proposal.operator}{parents}." if proposal.operator else "")
    if proposal.call:
        prose(f"Proposed in call {proposal.call}: {proposal.idea or 'no idea given'}")
    if proposal.reviews:
        show(reviews_table(proposal.reviews))


def reviews_table(reviews: Sequence[Review]) -> Table:
    """A row for each review: the marks and the remark."""
    marks = [name for name, _ in reviews[0].marks]
    rows = [(r.judge, *(dict(r.marks).get(name) for name in marks), r.remark) for r in reviews]
    return Table.of("Judges: marks of 10", [words("judge"), figures("d", *marks), wrapped("remark")], rows)
