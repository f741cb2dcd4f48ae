"""Models: errors by model and architecture, in sample and held out, and which features of models the fit has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evaluator.metrics import mean_abs
from evaluator.score import MEANS
from evolve.output.columns import figures, integers, words, wrapped
from evolve.report.dimension import (
    CARE,
    GOOD,
    MEAN_ERRORS,
    POOR,
    UNTESTED,
    Dimension,
    DimensionVerdict,
    Exhibit,
    Value,
    percent,
)
from evolve.report.evidence import Evidence, of_means
from evolve.report.held_out import by_fold, figures_of, means_of, over_the_limits
from evolve.run.ranges import weights
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_curves, omitted
from simulator.serving.model import model_table

NAME = "models"
RULE = (
    "good: each model that was left out of the search has mean held-out errors within 10 % (E2E) and 15 % (TTFT, ITL); "
    "with care: so has the mean over models; poor: not even that in E2E; untested: no model was left out"
)
SHARES = "By rule a model needs no measurements: its config.json gives the fields, and kernels are interpolated."


def models(evidence: Evidence) -> Dimension:
    """The dimension of a subject."""
    exhibits = [_by_model(evidence), _by_architecture(evidence), _features(evidence)]
    left_out = [f"{name}: {text}" for name, texts in _omitted(evidence.subject.experiments).items() for text in texts]
    return Dimension(NAME, "Models", _verdict(evidence), tuple(exhibits), caveats=tuple(left_out))


def _verdict(evidence: Evidence) -> DimensionVerdict:
    rows = [r for r in evidence.held_out if r.kind == "models"]
    names = list(dict.fromkeys(r.fold for r in rows))
    if not names:
        return DimensionVerdict(UNTESTED, f"No model was left out of a search. {SHARES}", RULE)
    means = {name: means_of(r for r in rows if r.fold == name) for name in names}
    overall, failed = means_of(rows), [name for name in names if over_the_limits(means[name])]
    worst = max(names, key=lambda name: means[name]["e2e"] or 0.0)
    sentence = (
        f"Each of {len(names)} models was left out of the search in turn: {len(names) - len(failed)} are within the "
        f"limits. The mean E2E error is {percent(overall['e2e'])}, at most {percent(means[worst]['e2e'])} "
        f"({_short(worst)})."
    )
    if failed:
        sentence += f" Beyond: {', '.join(_beyond(name, means[name]) for name in failed)}."
    level = GOOD if not failed else POOR if "e2e" in over_the_limits(overall) else CARE
    return DimensionVerdict(level, sentence, RULE)


def _beyond(name: str, means: dict[str, float | None]) -> str:
    return f"{_short(name)} ({', '.join(f'{x.upper()} {percent(means[x], 0)}' for x in over_the_limits(means))})"


def _short(model: str) -> str:
    return model.rsplit("/", 1)[-1]


def _by_model(evidence: Evidence) -> Exhibit:
    clean = {e.id: e for e in evidence.subject.clean}
    forecasts = [f for f in evidence.forecasts.experiments if f.id in clean]
    fitted = {e.model for e in evidence.subject.fitted}
    rows: list[list[Value]] = []
    for model in dict.fromkeys(e.model for e in clean.values()):
        here = [f for f in forecasts if clean[f.id].model == model]
        held = [r for r in evidence.held_out if r.kind == "models" and r.fold == model]
        f = figures_of([(r.experiment, r.errors["e2e"]) for r in held])
        means = [mean_abs(of_means(here, x)) for x in MEANS]
        rows.append([_short(model), model in fitted, len(here), *means, *means_of(held).values(), f.worst])
    return Exhibit.of(
        "Errors by model in percent: of the program, and held out, of the search repeated without the model",
        [
            words("model", "fitted"),
            integers("runs"),
            MEAN_ERRORS,
            *(replace(c, head=f"held-out {c.head}") for c in MEAN_ERRORS),
            figures("+.1f", "held-out worst E2E"),
        ],
        rows,
        evidence.subject.by("predict", "--json", dimension=NAME),
        *evidence.subject.validating(NAME, "models"),
    )


def _by_architecture(evidence: Evidence) -> Exhibit:
    kind = "architectures"
    title = (
        "Held out: the search repeated without dense models, or without mixtures of experts, errors there in percent"
    )
    return by_fold(evidence.held_out, kind, title, evidence.subject.validating(NAME, kind))


def _features(evidence: Evidence) -> Exhibit:
    """What the models of the fitted runs have, and of which features they have a single value."""
    fitted = evidence.subject.fitted
    kinds = {
        "architecture": [("mixture of experts" if e.facts["is_moe"] else "dense") for e in fitted],
        "weights": [weights(e) for e in fitted],
        "attention": [
            "grouped heads" if e.facts["kv_heads"] < e.facts["heads"] else "a KV head for each" for e in fitted
        ],
        "sampler sorts (top_p, top_k)": [_yes(e.facts["sampling_sort"]) for e in fitted],
        "repetition penalty": [_yes(e.facts["repetition_penalty"]) for e in fitted],
        "what the formulas leave out": ["something" if omitted(e.facts) else "nothing" for e in fitted],
        "kernels": ["measured" if has_curves(e.facts) else "datasheet" for e in fitted],
    }
    spans = {
        "parameters, billions": "model_params_b",
        "active parameters, billions": "active_params_b",
        "layers": "layers",
        "width": "hidden",
        "width of a head": "head_dim",
        "vocabulary": "vocab",
        "experts": "experts",
    }
    rows: list[list[Value]] = []
    for name, values in kinds.items():
        counts = ", ".join(f"{v} ({values.count(v)})" for v in sorted(set(values)))
        rows.append([name, counts or None, len(set(values)) > 1])
    for name, field in spans.items():
        numbers = sorted({e.facts[field] for e in fitted})
        rows.append([name, f"{numbers[0]:.4g} to {numbers[-1]:.4g}" if numbers else None, len(numbers) > 1])
    known = {str(entry["id"]) for entry in model_table().values()}
    unseen = sorted(_short(m) for m in known - {e.model for e in fitted})
    return Exhibit.of(
        "Features of the fitted models (in brackets: runs)",
        [wrapped("feature", "among the fitted models"), words("varied")],
        rows,
        evidence.subject.again(NAME),
        note=f"Shipped models without a fitted run: {', '.join(unseen) or 'none'}. docs/concepts.md lists what is not "
        f"modelled.",
    )


def _yes(value: float) -> str:
    return "yes" if value else "no"


def _omitted(experiments: Sequence[Experiment]) -> dict[str, tuple[str, ...]]:
    return {_short(e.model): texts for e in experiments if (texts := omitted(e.facts))}
