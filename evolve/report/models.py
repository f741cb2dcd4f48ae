"""Models: errors by model and architecture, in sample and held out, and which features of models the fit has seen."""

from __future__ import annotations

from dataclasses import replace

from evaluator.metrics import mean_abs
from evaluator.score import MEANS
from evolve.output.columns import figures, integers, words, wrapped
from evolve.report.dimension import CARE, GOOD, MEAN_ERRORS, POOR, UNTESTED, Dimension, Exhibit, percent
from evolve.report.evidence import Evidence
from evolve.report.held_out import by_fold, figures_of, means_of, over_the_limits
from evolve.run.ranges import weights
from evolve.validate.folds import last_part
from simulator.serving.facts import has_curves, omitted
from simulator.serving.model import model_table

NAME = "models"
RULE = (
    "good: the mean held-out errors without each model are within 10 % (E2E) and 15 % (TTFT, ITL); "
    "with care: so is the mean over models; poor: not even that in E2E; untested: no model was left out"
)
SHARES = "By rule a model needs no measurements: its config.json gives the fields, and kernels are interpolated."


def models(evidence: Evidence) -> Dimension:
    exhibits = [_by_model(evidence), _by_architecture(evidence), _features(evidence)]
    left_out = {last_part(e.model): omitted(e.facts) for e in evidence.subject.experiments}
    caveats = [f"{name}: {text}" for name, texts in left_out.items() for text in texts]
    return replace(brief(evidence), exhibits=tuple(exhibits), caveats=tuple(caveats))


def brief(evidence: Evidence) -> Dimension:
    """The dimension without its tables."""
    return Dimension.of(NAME, "Models", _verdict(evidence), RULE)


def _verdict(evidence: Evidence) -> tuple[str, str]:
    rows = [r for r in evidence.held_out if r.kind == "models"]
    names = list(dict.fromkeys(r.fold for r in rows))
    if not names:
        return UNTESTED, f"No search of its validation left a whole model out. {SHARES}"
    means = {name: means_of(r for r in rows if r.fold == name) for name in names}
    overall, failed = means_of(rows), [name for name in names if over_the_limits(means[name])]
    worst = max(names, key=lambda name: means[name]["e2e"] or 0.0)
    sentence = (
        f"Each of {len(names)} models was left out of the search in turn: {len(names) - len(failed)} are within the "
        f"limits. The mean E2E error is {percent(overall['e2e'])}, at most {percent(means[worst]['e2e'])} "
        f"({last_part(worst)})."
    )
    if failed:
        sentence += f" Beyond: {', '.join(_beyond(name, means[name]) for name in failed)}."
    return GOOD if not failed else POOR if "e2e" in over_the_limits(overall) else CARE, sentence


def _beyond(name: str, means: dict[str, float | None]) -> str:
    return f"{last_part(name)} ({', '.join(f'{x.upper()} {percent(means[x], 0)}' for x in over_the_limits(means))})"


def _by_model(evidence: Evidence) -> Exhibit:
    clean = evidence.subject.clean
    fitted = {e.model for e in evidence.subject.fitted}
    rows = []
    for model in dict.fromkeys(e.model for e in clean):
        here = [e for e in clean if e.model == model]
        held = [r for r in evidence.held_out if r.kind == "models" and r.fold == model]
        f = figures_of([(r.experiment, r.errors["e2e"]) for r in held])
        means = [mean_abs(evidence.errors_of(here, x)) for x in MEANS]
        rows.append([last_part(model), model in fitted, len(here), *means, *means_of(held).values(), f.worst])
    held_out = tuple(replace(c, head=f"held-out {c.head}") for c in MEAN_ERRORS)
    columns = [words("model", "fitted"), integers("runs"), MEAN_ERRORS, held_out]
    columns.append(figures("+.1f", "held-out worst E2E"))
    title = "Errors by model in percent: of the program, and held out, of the search repeated without the model"
    predicting = evidence.subject.by("predict", "--json", dimension=NAME)
    return Exhibit.of(title, columns, rows, predicting, *evidence.subject.validating(NAME, "models"))


def _by_architecture(evidence: Evidence) -> Exhibit:
    kind = "architectures"
    title = "Held out: the search repeated without dense models, or without mixtures of experts, errors in percent"
    return by_fold(evidence.held_out, kind, title, evidence.subject.validating(NAME, kind))


def _features(evidence: Evidence) -> Exhibit:
    fitted = evidence.subject.fitted
    kinds = {
        "architecture": [("mixture of experts" if e.facts["is_moe"] else "dense") for e in fitted],
        "weights": [weights(e) for e in fitted],
        "attention": [
            "grouped heads" if e.facts["kv_heads"] < e.facts["heads"] else "a KV head for each" for e in fitted
        ],
        "sampler sorts (top_p, top_k)": ["yes" if e.facts["sampling_sort"] else "no" for e in fitted],
        "repetition penalty": ["yes" if e.facts["repetition_penalty"] else "no" for e in fitted],
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
    rows = []
    for name, values in kinds.items():
        counts = ", ".join(f"{v} ({values.count(v)})" for v in sorted(set(values)))
        rows.append([name, counts or None, len(set(values)) > 1])
    for name, field in spans.items():
        numbers = sorted({e.facts[field] for e in fitted})
        rows.append([name, f"{numbers[0]:.4g} to {numbers[-1]:.4g}" if numbers else None, len(numbers) > 1])
    known = {str(entry["id"]) for entry in model_table().values()}
    unseen = sorted(last_part(m) for m in known - {e.model for e in fitted})
    note = f"Shipped models without a fitted run: {', '.join(unseen) or 'none'}. docs/concepts.md lists the gaps."
    columns = [wrapped("feature", "among the fitted models"), words("varied")]
    title = "Features of the fitted models (in brackets: runs)"
    return Exhibit.of(title, columns, rows, evidence.subject.again(NAME), note=note)
