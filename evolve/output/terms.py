"""Our words in tables and reports, with their meanings: on screen where they are used, and in the glossary."""

from __future__ import annotations

from evolve.output.printing import note

TERMS = {
    "bias": "the mean of signed errors",
    "complexity": "the operations plus the constants of a program",
    "decided": "the share, 0 to 1, of what is known of a constant that comes from the fitted runs, not the prior",
    "features": "the distinct fields that a program reads",
    "front": "the programs that no other one beats in worst 3, joint error, complexity and transfer error at once; "
    "one that is not sound beats no sound one",
    "goodput": "the requests/s that complete, each with its own latencies within every limit of `--slo`",
    "held out": "predicted by a program that was fitted, and unless a title says otherwise found, without these runs",
    "identified": "more than 0.9 of what is known of a constant comes from the fitted runs, and it exceeds its error",
    "in sample": "on the runs that the program was fitted on",
    "joint error": "the mean of the mean absolute errors of E2E, TTFT and ITL, percent",
    "knee": "the first rate at which a limit of `--slo` or more than 1 % of the requests fail, or the queue grows",
    "known answer": "what a simple or published model reaches on the same runs",
    "limits": "pass, or the latencies off by more than 10 % (E2E) or 15 % (TTFT, ITL)",
    "MAPE": "the mean absolute error, percent of what was measured",
    "merit": "the mean of joint and transfer error; the joint error where transfer was not measured",
    "sound": "contradicts no datasheet, and in a search of kernel fields no measured kernel (`evolve check --physics`)",
    "standard error": "how far off a constant may be, from the residuals",
    "transfer error": "the error on the worst quarter of runs, left out by model, TP degree, architecture or GPU; "
    "20 at most",
    "worst 3": "the mean of the three largest E2E errors, percent",
}


def legend(*terms: str, also: str = "") -> None:
    """Print the meanings of these terms, to be called before they are used; `also` are further explanations."""
    meanings = "; ".join(f"{term}: {TERMS[term]}" for term in terms)
    note(". ".join(text.strip().rstrip(".") for text in (meanings, also) if text) + ".")
