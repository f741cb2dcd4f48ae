"""The committee: near-optimal programs of a search, and how far a program is from them where nothing was measured.

Programs that fit equally well differ most on deployments and loads that no run shows. What their median says there is
no truth, but a program that is alone with its opinion is more often wrong than one in their midst.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from archive.champion import Rule, champion, within
from archive.elite import Elite
from evaluator.judge.kernel_sums import kernel_times_us, known_kernel_sums
from simulator.language.complete import complete
from simulator.language.measure import features
from simulator.language.opcodes import assemble
from simulator.language.parse import parse

# Programs whose merit is up to this much (relative) above the lowest: on held-out runs they do as well as the champion.
NEAR = 0.1
MEMBERS = 12
LEAST_US = 1.0  # a step takes at least this long on the host's clock


def committee(elites: Iterable[Elite], rule: Rule) -> list[Elite]:
    """Up to MEMBERS near-optimal elites, the best first.

    They are among those that compete to be champion. Of elites that read the same fields only the best is taken, as
    they say nearly the same.
    """
    near, rule = within(elites, replace(rule, within=NEAR))
    chosen: dict[tuple[str, ...], Elite] = {}
    for elite in sorted(near, key=lambda e: (rule.merit(e), e.id)):
        chosen.setdefault(_fields(elite.text), elite)
    return list(chosen.values())[:MEMBERS]


@lru_cache(maxsize=1024)  # the champion and the committee are chosen among the same programs
def _fields(text: str) -> tuple[str, ...]:
    """The fields that a program reads."""
    return tuple(features(parse(text)))


def final_champion(elites: Iterable[Elite], rule: Rule) -> Elite | None:
    """The champion of a finished search: of those within the rule only the ones nearest to the committee compete."""
    members = list(elites)
    return champion(members, rule, apart_pct(members, rule))


def apart_pct(elites: Iterable[Elite], rule: Rule) -> dict[int, float]:
    """By id, how far the step times of each elite within the rule are from the median of the committee's, in percent.

    The root mean square of the logarithm of their quotient, over steps of few and many decodes and over long prompts,
    on all known models that fit on 1 to 8 GPUs of the kinds with measured kernels.
    """
    members = list(elites)
    near, _ = within(members, rule)
    if not near:
        return {}
    judges = committee(members, rule)
    logs = {id: _log_times(text) for id, text in {e.id: e.text for e in (*near, *judges)}.items()}
    median = np.median([logs[e.id] for e in judges], axis=0)
    return {e.id: 100.0 * float(np.sqrt(np.mean(np.square(logs[e.id] - median)))) for e in near}


def _log_times(text: str) -> np.ndarray:
    """The logarithms of the program's times on the grid."""
    program = complete(parse(text))
    times_us = kernel_times_us(assemble(program), program.theta, known_kernel_sums().deployments)
    logs: np.ndarray = np.log(np.maximum(np.concatenate([part.ravel() for part in times_us]), LEAST_US))
    return logs
