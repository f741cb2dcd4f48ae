"""Engine settings: which of them the fitted runs vary, and so which of them the constants have seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from evaluator.score import MEANS
from evolve.output.columns import figures, integers, words, wrapped
from evolve.plan.sensitivity_result import Effect
from evolve.report.dimension import CARE, GOOD, UNTESTED, Dimension, Exhibit
from evolve.report.evidence import Evidence
from simulator.serving.engine import DECLARED
from simulator.serving.experiment import Experiment

NAME = "settings"
# The settings that change latencies, and what a replay makes of each.
SETTINGS = {name: declared.replay for name, declared in DECLARED.items() if declared.replay}
RULE = (
    "good: every setting that changes latencies has several values among the fitted runs; with care: some have; "
    "untested: none has"
)


def brief(evidence: Evidence) -> Dimension:
    """The dimension without its tables."""
    fitted = evidence.subject.fitted
    vary = sum(len(_values(name, fitted)) > 1 for name in SETTINGS)
    level = GOOD if vary == len(SETTINGS) else CARE if vary else UNTESTED
    sentence = f"{evidence.subject.unknown_runs}, so no setting is known to vary."
    if fitted:
        sentence = f"The fitted runs vary {vary} of {len(SETTINGS)} settings."
        if vary < len(SETTINGS):
            sentence += " The others are replayed by rule, and no measurement here says how well."
    return Dimension.of(NAME, "Engine settings", (level, sentence), RULE)


def settings(evidence: Evidence) -> Dimension:
    subject = evidence.subject
    seen = {name: _values(name, subject.fitted) for name in SETTINGS}
    columns = [words("setting"), wrapped("values"), words("varied"), wrapped("in a replay")]
    rows = [(name, ", ".join(values) or None, len(values) > 1, SETTINGS[name]) for name, values in seen.items()]
    note = "default: the model's limit for max_model_len, computed from memory for total_kv_blocks."
    varied = Exhibit.of("Engine settings of the fitted runs", columns, rows, subject.again(NAME), note=note)
    return replace(brief(evidence), exhibits=(varied, _sensitivity(evidence)))


def _sensitivity(evidence: Evidence) -> Exhibit:
    """The effect of each setting by replay: the median over a few clean runs."""
    effects: dict[str, list[Effect]] = defaultdict(list)
    for of_run in evidence.sensitivities if evidence.subject.clean else ():
        for effect in of_run.effects:
            effects[effect.setting].append(effect)
    columns = [words("setting"), wrapped("figure"), figures("+.3f", "E2E", "TTFT", "ITL", "largest, E2E")]
    columns.append(integers("settings tried", "outside the fitted runs", "impossible"))
    rows = [_effect_row(setting, of_setting) for setting, of_setting in effects.items()]
    note = (
        "Numbers are halved and doubled, switches turned over. Elasticity: by how many percent a mean latency grows "
        "where the setting grows by one percent. All of it is predicted by replay."
    )
    title = "Predicted effect of each setting: medians over a clean run of each cell and workload"
    return Exhibit.of(title, columns, rows, evidence.subject.by("sensitivity", "--json", dimension=NAME), note=note)


def _effect_row(setting: str, effects: Sequence[Effect]) -> list[object]:
    points = [point for effect in effects for point in effect.points]
    if any(effect.elasticity for effect in effects):
        figure, changes = "elasticity", [effect.elasticity for effect in effects if effect.elasticity]
    else:
        figure, changes = "change in percent", [point.change_pct for point in points if point.change_pct]
    values = {x: [c.mean for of_run in changes if (c := of_run.get(x))] for x in MEANS}
    largest = max(values["e2e"], key=abs, default=None)
    outside, impossible = sum(bool(p.outside) for p in points), sum(p.impossible is not None for p in points)
    medians = [median(of_figure) if of_figure else None for of_figure in values.values()]
    return [setting, figure, *medians, largest, len(points), outside, impossible]


def _values(name: str, experiments: tuple[Experiment, ...]) -> list[str]:
    values = {getattr(e.engine, name) for e in experiments}
    return [_spelled(v) for v in sorted(values, key=lambda v: (v is None, v or 0))]


def _spelled(value: object) -> str:
    if value is None:
        return "default"
    return str(value).lower() if isinstance(value, bool | str) else f"{value:g}"
