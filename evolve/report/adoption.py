"""Adoption: the one verdict of a report, for what it is and why, from held-out figures and verdicts on dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.cells import precision_of
from evaluator.metrics import present
from evaluator.score import MEANS
from evolve.output.table import PASS_PCT
from evolve.output.terminal import command
from evolve.report.accuracy import SampleErrors, refitted, sample_errors
from evolve.report.dimension import POOR, Dimension, percent
from evolve.report.evidence import Evidence
from evolve.report.subject import Subject
from simulator.common.records import record_class, stored

ADOPT, WITH_CARE, NOT = "adopt", "adopt with care", "do not adopt"
RULE = (
    "adopt: the mean errors of every measured latency are within 10 % (E2E) and 15 % (TTFT, ITL), held out, on new "
    "runs and in sample, and no dimension is poor; adopt with care: so are those of one latency at least, for which it "
    "is; do not adopt: of none, or the program was never validated or is not physically consistent"
)


@record_class
class Adoption:
    """The verdict, the use that it is for ("" for none), why, and the errors that it rests on."""

    verdict: str
    use: str = stored(key="for")
    because: str
    errors: tuple[SampleErrors, ...]


def adoption(evidence: Evidence, dimensions: Sequence[Dimension]) -> Adoption:
    """The verdict by RULE, in view of these dimensions."""
    subject, errors = evidence.subject, sample_errors(evidence)
    held = [sample for sample in errors if sample.held_out]
    worst = {name: max(present([sample.of(name) for sample in held]), default=None) for name in MEANS}
    measured = [name for name in MEANS if worst[name] is not None]
    good = [name for name in measured if not any(name in sample.beyond() for sample in errors)]
    poor = [d.title.lower() for d in dimensions if d.verdict.level == POOR]
    consistent = subject.source.record is None or subject.source.record.consistent
    reasons = []
    if held:
        figures = ", ".join(f"{percent(worst[name])} {name.upper()}" for name in measured)
        limits = ", ".join(f"{PASS_PCT[name]:g}" for name in measured)
        before = ", before it was fitted again" if refitted(evidence) else ""
        reasons.append(f"Held out{before}, mean errors are {figures}; the limits are {limits} %.")
    else:
        never = command("validate", subject.path or "RUN")
        reasons.append(
            f"No error is held out, because it was never validated: `{never}` validates the champion of a run."
        )
    if not consistent:
        check = command("show", subject.source.name, "--check", "--physics")
        reasons.append(f"It contradicts a datasheet or measured kernels (`{check}`).")
    if poor:
        reasons.append(f"Poor: {', '.join(poor)}.")
    if not good or not consistent:
        return Adoption(NOT, "", " ".join(reasons), errors)
    sure = good == measured and not poor and not refitted(evidence)
    return Adoption(ADOPT if sure else WITH_CARE, _use(subject, good, measured), " ".join(reasons), errors)


def _use(subject: Subject, good: Sequence[str], measured: Sequence[str]) -> str:
    beyond = [name.upper() for name in measured if name not in good]
    names = f"mean {', '.join(name.upper() for name in good)}"
    if beyond:
        names += f", not {' or '.join(beyond)}"
    gpus, weights = ({*map(of, subject.fitted)} for of in (lambda e: e.hardware, precision_of))
    return f"{names}, on {', '.join(sorted(gpus))} in {', '.join(sorted(weights))}" if gpus else names
