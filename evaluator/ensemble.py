"""The ensemble: near-optimal programs of a search, and a program's distance from them where nothing was measured.

Programs that fit equally well differ most on deployments and loads that no run shows. What their median says there is
no truth, but a program that is alone with its opinion is more often wrong than one in their midst.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from archive.champion import Rule, champion, within
from archive.elite import Elite
from evaluator.judge.physics import kernel_times_us, known_kernel_sums
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.measure import features
from simulator.language.opcodes import assemble

# Of programs near the champion: the selection score is at most this much (relative) above the lowest. On held-out runs
# they do as well as the champion.
NEAR = 0.1
MEMBERS = 12
LEAST_US = 1.0  # a step takes at least this long on the host's clock


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


def final_champion(elites: Iterable[Elite], rule: Rule) -> Elite | None:
    """The champion of a finished search: of those within the rule only the ones nearest to the ensemble compete."""
    members = list(elites)
    return champion(members, rule, apart_pct(members, rule))


def apart_pct(elites: Iterable[Elite], rule: Rule) -> dict[int, float]:
    """By id, the distance of the step times of each elite within the rule from the ensemble's median, in percent.

    The root mean square of the logarithm of their quotient, over steps of few and many decodes and over long prompts,
    on all known models that fit on 1 to 8 GPUs of the kinds with measured kernels.
    """
    members = list(elites)
    near, _ = within(members, rule)
    if not near:
        return {}
    judges = ensemble(members, rule)
    logs = {e.id: _log_times(e.program) for e in {e.id: e for e in (*near, *judges)}.values()}
    median = np.median([logs[e.id] for e in judges], axis=0)
    return {e.id: 100.0 * float(np.sqrt(np.mean(np.square(logs[e.id] - median)))) for e in near}


def _log_times(program: Program) -> np.ndarray:
    program = complete(program)
    times_us = kernel_times_us(assemble(program), program.theta, known_kernel_sums().deployments)
    logs: np.ndarray = np.log(np.maximum(np.concatenate([part.ravel() for part in times_us]), LEAST_US))
    return logs
