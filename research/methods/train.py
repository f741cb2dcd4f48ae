"""Any entry of the board, trained: by its authors' own training, by our fit on load stages, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evaluator import baselines
from evaluator.fit.fit import CORRECTIONS, corrected, fit, models_of
from evaluator.fit.loss import FitSet
from evaluator.fit.methods import METHODS as SOLVERS
from evaluator.fit.problem import limits, problem_of, with_prior_reset
from evaluator.fit.steps import StepRun, step_positions
from evaluator.fit.trees import FEATURES, NoRows, SplitRun, train_ratio
from evaluator.fit.trees import train as train_trees
from evolve.run.program import method_text
from research.methods.bayes import calibrate
from research.methods.catalog import FALLBACK_PCT, TREES, WRITTEN, Method
from research.methods.closed_form import Means, direct, true_means
from research.methods.entries import OWN, SEARCH, Entry
from research.methods.features import Basis, of_trees, slopes
from research.methods.recipe import Recipe, mean_error, timed, train
from research.methods.samples import Sample, samples_of
from research.methods.written import FOR_ALL, train_hamm
from simulator.clock.run import HostileStep
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment
from simulator.serving.splits import TEST


class Untrainable(Exception):
    """The protocol cannot train the method on these data."""


@dataclass(frozen=True)
class Trained:
    """A trained entry: programs by what they are of, "" for all runs, a model, or the id of a run. times: measured
    times that step_time was trained on, 0 if it was fitted to load stages only."""

    programs: Mapping[str, Program]
    times: int = 0

    def program_for(self, experiment: Experiment) -> Program | None:
        """The program that predicts an experiment; None if none was trained for it."""
        names = (experiment.id, experiment.model, "")
        return next((self.programs[name] for name in names if name in self.programs), None)

    @property
    def shared(self) -> Program | None:
        """The one program of all runs, if there is one."""
        return self.programs.get("")

    @property
    def constants(self) -> int:
        """Constants that were trained, those of all programs together."""
        return sum(int((high > low).sum()) for low, high in map(limits, self.programs.values()))


@dataclass(frozen=True)
class Training:
    """Training data: experiments prepared for fits, measured step times, and published means of load stages."""

    data: FitSet
    samples: tuple[Sample, ...]
    published: tuple[Means, ...]

    def only(self, model: str) -> Training:
        """The part of one model."""
        keep = [i for i, e in enumerate(self.data.experiments) if e.model == model]
        ids = {self.data.experiments[i].id for i in keep}
        return replace(self, data=self.data.subset(keep), samples=tuple(s for s in self.samples if s.experiment in ids))


def form_of(method: Method) -> Program:
    """The method's program with every timed function written out, its constants at their start values."""
    return complete(parse(method_text(method.program), f"{method.program}.py"))


def trained(entry: Entry, protocol: str, training: Training, predicted: Sequence[Experiment]) -> Trained:
    """The entry, trained by one of its protocols, to predict these runs. Raises Untrainable, and what a fit raises."""
    if entry.source is not None:
        program = entry.source.complete
        return Trained({"": program if protocol == SEARCH else _fitted(program, training.data)})
    if entry.method is None:
        return _known(entry.name, training.data.experiments, predicted)
    return _method(entry.method, protocol, training, predicted)


def basis_of(entry: Entry) -> Basis:
    """The features of the entry's form."""
    if entry.source is not None:
        return slopes(entry.source.complete)
    if entry.method is None:
        return slopes(baselines.form(entry.name))
    features = {"trees": "own", "trees on components": "with components"}.get(str(entry.method.own))
    return of_trees(FEATURES[features]) if features else slopes(form_of(entry.method))


def _known(name: str, fitted: Sequence[Experiment], predicted: Sequence[Experiment]) -> Trained:
    pairs: list[tuple[Experiment, Program]] = []
    for task in baselines.tasks(fitted, predicted):
        if task.name == name and task.predicted:
            program = baselines.program_of(task)
            pairs += [(e, program) for e in task.predicted]
    if not pairs:
        raise Untrainable("no run that was fitted, or no measured kernels of the GPU, says anything of these")
    shared = len(pairs) == len(predicted) and all(program is pairs[0][1] for _, program in pairs)
    if shared:
        return Trained({"": pairs[0][1]})
    of_model = {e.model: program for e, program in pairs}
    if all(program is of_model[e.model] for e, program in pairs):
        return Trained(of_model)
    return Trained({e.id: program for e, program in pairs})


def _method(method: Method, protocol: str, training: Training, predicted: Sequence[Experiment]) -> Trained:
    if method.own in TREES:
        try:
            program, times = _trees(method, training)
        except NoRows as e:
            raise Untrainable(f"too few measured times: none is in the split '{e.split}'") from None
        if protocol == OWN:
            return Trained({"": _with_overheads(program, training.data)}, times)
        return Trained({"": _fitted(program, training.data)}, times)
    form = form_of(method)
    one = _own if protocol == OWN else _ours
    if method.own in ("closed form", "closed form, published") and protocol == OWN:
        return _closed(method, form, training)
    if method.own in WRITTEN and protocol == OWN:
        return _written(method, form, training, predicted)
    if not method.per_model:
        program, times = one(method, form, training)
        return Trained({"": program}, times)
    parts = {model: one(method, form, training.only(model)) for model in models_of(training.data)}
    return Trained({m: program for m, (program, _) in parts.items()}, sum(n for _, n in parts.values()))


def _fitted(program: Program, data: FitSet) -> Program:
    """All constants together, on the load stages, as in a search. Where the runs leave them open, nothing of their old
    values stays, which may come from runs that are held out."""
    return fit(program, data, allow_hostile=True, reset_to_prior=True).program


def _ours(method: Method, form: Program, training: Training) -> tuple[Program, int]:
    return _fitted(form, training.data), 0


def _own(method: Method, form: Program, training: Training) -> tuple[Program, int]:
    """step_time by the authors' training, then the constants of other functions on the load stages."""
    if method.own == "replays":
        try:
            return calibrate(form, training.data), 0
        except HostileStep as e:
            raise Untrainable(str(e)) from None
    assert isinstance(method.own, Recipe)  # all others are trained above
    samples = _measured(training)
    program = train(form, samples, method.own)
    times = sum(len(s.observed_us) for s in samples)
    return _with_overheads(program, training.data), times


def _written(method: Method, form: Program, training: Training, predicted: Sequence[Experiment]) -> Trained:
    """The training as it was written, on all but the last fifth of the cycles; the delays on the load stages."""
    samples = timed(s.where(s.split != TEST) for s in _measured(training))
    if training_for_all := FOR_ALL.get(str(method.own)):
        programs = {"": training_for_all(form, samples)}
    else:
        programs = train_hamm(form, samples, {e.id: e.model for e in training.data.experiments})
    for model, program in programs.items():
        programs[model] = _with_overheads(program, training.only(model).data if model else training.data)
    if method.own == "srfa changed":
        programs |= _fallbacks(programs[""], training, samples, predicted)
    return Trained(programs, sum(len(s.observed_us) for s in samples))


def _fallbacks(
    program: Program, training: Training, samples: Sequence[Sample], predicted: Sequence[Experiment]
) -> dict[str, Program]:
    """The host's linear form, fitted to a deployment alone, for each whose times the program misses by too much.

    By the id of the runs that it predicts: a deployment without runs to train on has the program of all.
    """
    experiments, deployments = training.data.experiments, [tuple(e.facts.items()) for e in training.data.experiments]
    programs = dict[str, Program]()
    for facts in dict.fromkeys(deployments):
        seen = [i for i, other in enumerate(deployments) if other == facts]
        theirs = [e.id for e in predicted if tuple(e.facts.items()) == facts]
        times = [s for s in samples if s.experiment in {experiments[i].id for i in seen}]
        if theirs and times and 100.0 * mean_error(program, times) > FALLBACK_PCT:
            programs |= dict.fromkeys(theirs, _fitted(baselines.form("blackbox"), training.data.subset(seen)))
    return programs


def _measured(training: Training) -> Sequence[Sample]:
    """The measured times. Raises Untrainable if there are none."""
    if not training.samples:
        raise Untrainable("no step times to train on")
    return training.samples


def _trees(method: Method, training: Training) -> tuple[Program, int]:
    """The method's ensemble in its program, which has the constants that it was trained with.

    An ensemble has no mixtures of batches: of a load stage it sees the batch that most of its tokens met.
    """
    if method.own == "trees on ratios":
        base = _fitted(form_of(method), training.data)
        runs = _split_runs(samples_of(training.data, ()))
        return train_ratio(runs, base).program, sum(len(run.split) for run in runs)
    runs = _split_runs(training.samples)
    features = "own" if method.own == "trees" else "with components"
    return complete(train_trees(runs, features).program), sum(len(run.split) for run in runs)


def _split_runs(samples: Sequence[Sample]) -> list[SplitRun]:
    return [SplitRun(StepRun(s.facts, s.typical, s.observed_us), s.split) for s in samples]


def _with_overheads(program: Program, data: FitSet) -> Program:
    """The program with the constants of all functions but step_time fitted to the load stages."""
    problem = with_prior_reset(problem_of(program, data, held=step_positions(program)))
    phi, _, _ = corrected(problem, SOLVERS["linear"], CORRECTIONS, True)
    return program.with_theta(tuple(phi))


def _closed(method: Method, form: Program, training: Training) -> Trained:
    experiments = training.data.experiments
    if method.own == "closed form":
        means = true_means(experiments)
    else:
        ids = {e.id for e in experiments}
        means = [m for m in training.published if m.experiment in ids]
    if not means:
        raise Untrainable("no load stage has what the closed form needs")
    return Trained(direct(form, means))
