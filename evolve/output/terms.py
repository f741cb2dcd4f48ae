"""Our words in tables and reports, with their meanings: on screen where they are used, and in the glossary."""

from __future__ import annotations

from evolve.output.printing import note

TERMS = {
    "baseline": "a simple or published model, with its errors on the same runs",
    "bias": "the mean of signed errors",
    "complexity": "the operations plus the constants of a program",
    "consistent": "contradicts no datasheet, and in a search of kernel fields no measured kernel "
    "(`evolve show PROGRAM --check --physics`)",
    "data share": "the share, 0 to 1, of the information on a constant that comes from the fitted runs, not the prior",
    "features": "the distinct fields that a program reads",
    "goodput": "the requests/s that complete, each with its own latencies within every limit of `--slo`",
    "group-out": "the leave-group-out error: the mean over cells (model, GPU, type of weights) of runs predicted "
    "without their model, GPU, precision, parallelism, version or source",
    "held out": "predicted by a program that was fitted, and unless a title says otherwise found, without these runs",
    "identified": "a data share above 0.9, and a value that exceeds its standard error",
    "in sample": "on the runs that the program was fitted on",
    "knee": "the first rate at which a limit of `--slo` or more than 1 % of the requests fail, or the queue grows",
    "limits": "pass, or the latencies off by more than 10 % (E2E) or 15 % (TTFT, ITL)",
    "MAPE": "the mean absolute error, percent of the measurement",
    "mean error": "the mean of the mean absolute errors of E2E, TTFT and ITL, percent, in which TTFT counts 0.3 times; "
    "a cell (model, GPU, type of weights) counts as 8 runs at most",
    "Pareto front": "the programs that no other one beats in worst-3 E2E, mean error, complexity and group-out at "
    "once; an inconsistent program never beats a consistent one",
    "selection score": "the group-out error; the mean error where that was not measured",
    "standard error": "how far off a constant may be, from the residuals",
    "worst-3 E2E": "the mean of the three largest E2E errors, percent",
}


def legend(*terms: str, also: str = "") -> None:
    """Print the meanings of these terms, to be called before they are used; `also` are further explanations."""
    meanings = "; ".join(f"{term}: {TERMS[term]}" for term in terms)
    note(". ".join(text.strip().rstrip(".") for text in (meanings, also) if text) + ".")
