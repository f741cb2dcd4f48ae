"""The part of a report about language models, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from archive.champion import Rule
from archive.proposal import MODEL, Outcome
from evolve.output.terminal import command
from simulator.common.json import JsonObject
from simulator.common.text import counted

# The option that raises each limit.
OPTIONS = {"max_usd": "--max-usd", "max_calls": "--max-calls", "max_tokens": "--max-tokens"}

# The consequence and the remedy, where every request went unanswered.
NO_ANSWER = (
    "so operators alone proposed: see to the model, its server and --api-base (`evolve llm check MODEL` asks one "
    "question), then start a new run"
)


def raises(stopped: str) -> str:
    """The option that raises the limit which stopped a search, "" if no limit did; the reason names the limit first.

    >>> raises("max_calls 3 is reached"), raises("")
    ('--max-calls', '')
    """
    return OPTIONS.get(stopped.partition(" ")[0], "")


def unanswered(calls: JsonObject, run: str) -> str:
    """Why a search by language models had none of their answers, and the remedy, in one line; "" if it had one, if it
    is a replay, or if it asked for none.

    `calls`: as for `lines`.
    """
    models = calls.get("models", {})
    if not calls or calls["replayed"] or any({"answered", "cached"} & set(row["outcomes"]) for row in models.values()):
        return ""
    option = raises(calls["stopped"])
    ended = f"{calls['stopped']}: `{command('resume', run, option, 'MORE')}` goes on" if option else ""
    if not models:
        return f"{run}: no language model could be asked: {ended}" if ended else ""
    faults = "; ".join(f"{model}: {row['last_fault']}" for model, row in models.items())
    return f"{run}: no language model answered ({faults}), {f'and {ended}' if ended else NO_ANSWER}"


def _reviews(reviews: JsonObject) -> list[str]:
    """The number of reviews, and the correlation of the judges' marks with leave-group-out errors."""
    r, n = reviews["rank_correlation"], reviews["programs"]
    text = [
        f"Reviews: {reviews['given']} given, {counted(reviews['asked_again'], 'question')} asked again, "
        f"{reviews['missing']} missing."
    ]
    if r is not None:
        chance = 1.96 / (n - 1) ** 0.5  # for independent ranks r is about normal with variance 1/(n - 1)
        text.append(
            f"Marks and leave-group-out error: rank correlation {r:+.2f} over {n} programs (negative: better marks go "
            f"with lower errors); |r| < {chance:.2f} may be chance."
        )
    return text


def arms(outcomes: Sequence[Outcome], rule: Rule) -> JsonObject:
    """The candidates of each model and of operators, and the sum of what these gained (see archive.champion.Rule)."""
    found: dict[str, dict[str, float]] = {}
    elites = {outcome.elite.id: outcome.elite for outcome in outcomes if outcome.elite}
    for outcome in outcomes:
        if outcome.proposal.island is not None:
            model = outcome.proposal.operator.removeprefix(MODEL)
            name = "operators" if model == outcome.proposal.operator else model
            row = found.setdefault(name, {"fitted": 0, "gain_pct": 0.0})
            row["fitted"] += bool(outcome.key)
            row["gain_pct"] += rule.gain_pct(outcome.elite, elites)
    return found


def _arms(rows: JsonObject, models: JsonObject) -> str:
    """The share of each arm of the bandit, and its gain for a candidate and a dollar, in a sentence."""
    total, parts = sum(row["fitted"] for row in rows.values()) or 1, []
    for name, row in rows.items():
        part = f"{name} {row['fitted'] / total:.0%}, {row['gain_pct'] / max(row['fitted'], 1):.2f} % gained each"
        usd = models[name]["usd"] if name in models else 0.0
        parts.append(f"{part}, {row['gain_pct'] / usd:.2f} % a dollar" if usd else part)
    return f"Shares of {counted(total, 'candidate')}: {'; '.join(parts)} (fall of the selection score of the parent)."


def lines(calls: JsonObject, run: str) -> list[str]:
    """The cost of each model, what is uncertain about it, and why the run stopped early, if it did.

    `calls`: the totals of the calls to language models, as `llm` in report.json has them.
    """
    text = []
    if calls["replayed"]:
        text.append(f"Replayed from {calls['replayed']}: nothing was sent, these are the recorded costs.")
    for model, row in calls.get("models", {}).items():
        outcomes = ", ".join(f"{n} {name}" for name, n in sorted(row["outcomes"].items(), key=lambda x: (-x[1], x[0])))
        tokens = f"{row['tokens_in']:,} tokens in, {row['tokens_out']:,} out"
        version = f" ({', '.join(row['versions'])})" if row["versions"] else ""
        text.append(f"{model}{version}: {row['requests']} requests ({outcomes}), {tokens}, {row['usd']:.4f} USD")
        if row["last_fault"]:
            text.append(f"  last fault: {row['last_fault']}")
    if not calls.get("models"):
        text.append("No request was sent.")
    else:
        possibly = f", possibly {calls['possibly_usd']:.4f} more" if calls["possibly_usd"] > 5e-5 else ""
        text.append(f"In all {calls['usd']:.4f} USD{possibly}; every request: {run}/ledger.csv")
        if calls.get("uncounted"):  # not in reports of earlier releases
            guessed = counted(calls["uncounted"], "request")
            text.append(
                f"Of this {calls['uncounted_usd']:.4f} USD are a guess: {guessed} had no credible count of tokens and "
                "count as the most that they can take."
            )
        if calls.get("arms"):  # of a search by auto
            text.append(_arms(calls["arms"], calls["models"]))
        text.append(f"The ideas and their outcomes: {run}/RESEARCH.md")
    if calls.get("beyond_budget"):  # not in reports of earlier releases
        text.append(
            f"{counted(calls['beyond_budget'], 'program')} came when the budget of candidates was full and were not "
            f"considered; their share of the cost is {calls['beyond_budget_usd']:.4f} USD."
        )
    if calls.get("under_way"):
        text.append(f"Possibly paid, since the process ended before an answer came: {', '.join(calls['under_way'])}")
    if calls.get("reviews"):
        text += _reviews(calls["reviews"])
    if calls["substitutes"]:
        text.append(f"{calls['substitutes']} proposals come from offline operators, because no model answered.")
    beyond = calls.get("passed", "")  # not in reports of earlier releases
    if beyond and beyond != calls["stopped"]:
        text.append(f"A limit did not hold: {beyond}.")
    if calls["stopped"]:
        option = raises(calls["stopped"])
        remedy = f"; `{command('resume', run, option, 'MORE')}` goes on" if option else ""
        if calls["stopped"].startswith("no new candidate"):
            remedy = ": name another model, or raise llm.patience in the configuration of a new run"
        text.append(f"Stopped before the budget of candidates: {calls['stopped']}{remedy}.")
    return text
