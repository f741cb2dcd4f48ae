"""The evaluator that other engines ask: a search's own, for program texts of any origin.

A text is parsed, never executed; one that a search would refuse has a complaint in place of figures.
"""

from __future__ import annotations

from functools import lru_cache

from archive.elite import Elite
from archive.proposal import Proposal, Rejected
from evaluator.diagnose.tables import whole
from evolve.output.progress import Line
from evolve.run.config import Config
from evolve.run.data import chosen
from evolve.search.assessor import Live, begin_alone
from evolve.search.pool.local import local
from evolve.search.workers import workers_of

MOST_KEPT = 1000  # verdicts


class TextEvaluator:
    """Assesses texts as a search with this configuration does, to the last digit, on data that are prepared once.

    That is in this process, or in a worker if numpy was imported here before `processes.settle`. experiments: those
    that are fitted. Raises InputError if there are none.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.experiments, _ = chosen(config.data)
        self._workers = workers_of(local(1, Line(quiet=True)), self.experiments, config)
        self._live = Live(config, self._workers)
        self.verdict = lru_cache(maxsize=MOST_KEPT)(self._verdict)

    def _verdict(self, text: str) -> Elite | Rejected:
        """The scored program, with the figures of a search's journal, or why a search would reject it."""
        return begin_alone(self._live, Proposal(0, None, text, "engine", ()))().outcome.verdict

    def feedback(self, text: str) -> dict[str, str]:
        """What a proposer can learn from a text, by title: the complaint, or fitted constants, errors and doubts."""
        verdict = self.verdict(text)
        if isinstance(verdict, Rejected):
            return {"complaint": f"{verdict.stage}: {verdict.why}"}
        return {
            "program with fitted constants, without terms that the fit set to 0": verdict.text,
            "errors on runs left out": "\n".join(f"{name}: {error:.2f} %" for name, error in verdict.cells),
            "diagnosis": whole(self._workers.diagnose(verdict.text, {}).result()),
        }
