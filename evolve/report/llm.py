"""What a report says of language models, in lines of text."""

from __future__ import annotations

from typing import Any

# where a run of language models stops before its budget: how it goes on
REMEDIES = {"max_usd": "--max-usd", "max_calls": "--max-calls", "max_tokens": "--max-tokens"}


def lines(found: dict[str, Any], run: str) -> list[str]:
    """Of report["llm"]: the cost of each model, what is not certain about it, and why the run stopped, if it did."""
    out = []
    if found["replayed"]:
        out.append(f"Replayed from {found['replayed']}: nothing was sent, these are the recorded costs.")
    for model, row in found.get("models", {}).items():
        outcomes = ", ".join(f"{n} {name}" for name, n in sorted(row["outcomes"].items(), key=lambda x: (-x[1], x[0])))
        tokens = f"{row['tokens_in']:,} tokens in, {row['tokens_out']:,} out"
        version = f" ({', '.join(row['versions'])})" if row["versions"] else ""
        out.append(f"{model}{version}: {row['requests']} requests ({outcomes}), {tokens}, {row['usd']:.4f} USD")
        if row["last_fault"]:
            out.append(f"  last fault: {row['last_fault']}")
    if not found.get("models"):
        out.append("No request was sent.")
    else:
        possibly = f", possibly {found['possibly_usd']:.4f} more" if found["possibly_usd"] > 5e-5 else ""
        out.append(f"In all {found['usd']:.4f} USD{possibly}; every request: {run}/ledger.csv")
    if found.get("under_way"):
        calls = ", ".join(found["under_way"])
        out.append(f"Possibly paid, since the process died before an answer came: {calls}")
    if found["substitutes"]:
        out.append(f"{found['substitutes']} proposals are of offline operators, because no model answered.")
    if found["stopped"]:
        option = REMEDIES.get(found["stopped"].split()[0])
        on = f"; `evolve resume {run} {option} MORE` goes on" if option else ""
        out.append(f"Stopped before the budget of candidates: {found['stopped']}{on}.")
    return out
