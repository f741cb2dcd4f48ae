"""The ensemble: near-optimal programs of a search, which differ most on deployments and loads that no run shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from archive.champion import Rule, within
from archive.elite import Elite
from simulator.language.measure import features

# Of programs near the champion: the selection score is at most this much (relative) above the lowest. On held-out runs
# they do as well as the champion.
NEAR = 0.1
MEMBERS = 12


def ensemble(elites: Iterable[Elite], rule: Rule) -> list[Elite]:
    """Up to MEMBERS near-optimal elites, the best first.

    They are among those that compete to be champion. Of elites that read the same fields only the best is taken, as
    they say nearly the same.
    """
    near, rule = within(elites, replace(rule, within=NEAR))
    chosen: dict[tuple[str, ...], Elite] = {}
    for elite in sorted(near, key=lambda e: (rule.selection_score(e), e.id)):
        chosen.setdefault(features(elite.program), elite)
    return list(chosen.values())[:MEMBERS]
