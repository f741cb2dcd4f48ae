"""The trainings of the five ideas of the original exercise, as they were written.

Their forms (seeds/methods/*_as_written.py) are `linear + link(inner)`, both linear in constants: `design` reads the
features off the program. Times are in ms here, and so are constants in us; other constants keep their units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import scipy

from evaluator.fit.problem import limits, rounded
from evaluator.fit.steps import solved_within, step_positions
from research.methods.recipe import TAIL, folds, timed
from research.methods.samples import Sample
from simulator.clock.bind import bind
from simulator.language.ir import Program
from simulator.language.opcodes import assemble

RIDGE = (0.01, 0.1, 1.0, 10.0)  # penalties that NRRL chooses from
PENALTIES, DELTAS_MS = (0.01, 0.1, 1.0), (0.5, 1.0, 2.0)  # that SRFA chooses from; the unit of its delta is our choice
JAMS_PENALTY = 0.01  # our choice: the exercise gives none
LEAST_LEFT = 0.01  # of a time, what HAMM's physical times leave at least, so that it has a logarithm
FIRST_STEP = 100  # of a session, from which SRFA trains
SMALL_MOVE = 1e-3  # of a constant under an exponential, which is cut off at exp(50)
FAR_MS = 1e3  # here a softplus is its argument
US_PER_MS = 1e3

Link = Literal["identity", "exp", "softplus"]
# The value in ms of each link, and its slope.
LINKS: dict[Link, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "identity": (lambda x: x, np.ones_like),
    "exp": (lambda x: np.exp(np.minimum(x, 50.0)) / US_PER_MS,) * 2,
    "softplus": (lambda x: np.logaddexp(0.0, US_PER_MS * x) / US_PER_MS, lambda x: scipy.special.expit(US_PER_MS * x)),
}


@dataclass(frozen=True)
class Form:
    """A program whose step_time is linear in the constants at `free`, those with `inner` (bool[free]) under the link.
    unit: float64[free], us to a ms where a constant has the unit us, else 1."""

    program: Program
    link: Link
    names: tuple[str, ...]
    free: np.ndarray
    inner: np.ndarray
    unit: np.ndarray

    @property
    def start(self) -> np.ndarray:
        """float64[free]: the program's own values, the roofline."""
        values: np.ndarray = np.array(self.program.theta, dtype=float)[self.free] / self.unit
        return values

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) of the free constants, float64[free] each."""
        low, high = limits(self.program)
        return low[self.free] / self.unit, high[self.free] / self.unit

    def theta(self, values: np.ndarray) -> np.ndarray:
        """float64[theta]: all constants, the free ones at these values."""
        theta = np.array(self.program.theta, dtype=float)
        theta[self.free] = values * self.unit
        return theta

    def with_values(self, values: np.ndarray) -> Program:
        """The program with these values of its free constants, moved into their bounds."""
        return self.program.with_theta(tuple(rounded(self.theta(values), *limits(self.program))))


def form_with(program: Program, link: Link) -> Form:
    """The form of a method as written. Constants b0, b1, ... and the correction are under the link."""
    function = program.function("step_time")
    assert function
    low, high = limits(program)
    first = min(step_positions(program))
    pairs = [(first + i, c) for i, c in enumerate(function.constants) if high[first + i] > low[first + i]]
    names = tuple(c.name for _, c in pairs)
    inner = np.array([name[0] == "b" or name == "correction" for name in names])
    unit = np.array([US_PER_MS if c.unit and c.unit[0] else 1.0 for _, c in pairs])
    return Form(program, link, names, np.array([i for i, _ in pairs]), inner, unit)


@dataclass(frozen=True)
class Design:
    """The features of measured times. x: float64[batches, free]; first, share: as in Sample. observed_ms, weight:
    float64[times], the weights with the sum 1. experiment: of each time."""

    form: Form
    x: np.ndarray
    first: np.ndarray
    share: np.ndarray
    observed_ms: np.ndarray
    weight: np.ndarray
    experiment: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """float64[times, free]: the features, means over the batches of each time."""
        means: np.ndarray = np.add.reduceat(self.share[:, None] * self.x, self.first, axis=0)
        return means

    def predicted_ms(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The times, float64[times], and their slopes by each constant, float64[times, free]."""
        inner = self.form.inner
        value, slope = LINKS[self.form.link]
        linked = self.x[:, inner] @ values[inner]
        times = np.add.reduceat(self.share * (self.x[:, ~inner] @ values[~inner] + value(linked)), self.first)
        slopes = self.share[:, None] * self.x * np.where(inner, slope(linked)[:, None], 1.0)
        return times, np.add.reduceat(slopes, self.first, axis=0)


def design(form: Form, samples: Sequence[Sample]) -> Design:
    """The features of these times by the form's own formula: what its step_time gains as a constant moves."""
    x = np.concatenate([_features(form, sample) for sample in samples])
    offsets = np.cumsum([0, *(len(s.raw) for s in samples[:-1])])
    first = np.concatenate([s.first + offset for s, offset in zip(samples, offsets, strict=True)])
    names = ("share", "observed_us", "weight")
    share, observed_us, weight = (np.concatenate([getattr(s, n) for s in samples]) for n in names)
    experiment = np.repeat([s.experiment for s in samples], [len(s.observed_us) for s in samples])
    return Design(form, x, first, share, observed_us / US_PER_MS, weight / weight.sum(), experiment)


def _features(form: Form, sample: Sample) -> np.ndarray:
    """float64[batches, free]."""
    code = assemble(form.program)

    def times_ms(values: np.ndarray) -> np.ndarray:
        times: np.ndarray = bind(code, tuple(form.theta(values)), sample.facts).steps_us(sample.raw) / US_PER_MS
        return times

    at = np.zeros(len(form.free))
    if form.link == "softplus":
        at[form.names.index("b0")] = FAR_MS
    base, x = times_ms(at), np.empty((len(sample.raw), len(form.free)))
    for j, inner in enumerate(form.inner):
        moved = at.copy()
        logarithmic = inner and form.link == "exp"
        moved[j] += SMALL_MOVE if logarithmic else 1.0
        times = times_ms(moved)
        x[:, j] = np.log(times / base) / SMALL_MOVE if logarithmic else times - base
    return x


def descend(
    d: Design, start: np.ndarray, low: np.ndarray, high: np.ndarray, penalty: np.ndarray, delta_ms: float
) -> np.ndarray:
    """float64[free]: the constants of the least mean Huber loss and `penalty` times their squares, by L-BFGS-B."""
    size = np.sqrt(d.weight @ np.square(d.means) + penalty)  # a constant in units of its effect
    size[size == 0.0] = 1.0

    def objective(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        values = scaled / size
        times, slopes = d.predicted_ms(values)
        residual = times - d.observed_ms
        small = np.clip(residual, -delta_ms, delta_ms)
        loss = d.weight @ (small * (residual - small / 2.0)) + penalty @ np.square(values)
        return float(loss), ((d.weight * small) @ slopes + 2.0 * penalty * values) / size

    bounds = list(zip(low * size, high * size, strict=True))
    begin = np.clip(start, low, high) * size
    options = {"maxiter": 500, "maxfun": 1000}
    result = scipy.optimize.minimize(objective, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    found: np.ndarray = np.clip(result.x / size, low, high)
    return found


def train_nrrl(program: Program, samples: Sequence[Sample]) -> Program:
    """Ridge on standardised features, its penalty by cross-validation over five blocks of consecutive times."""
    form = form_with(program, "identity")
    parts = [(design(form, train), design(form, held)) for train, held in folds(samples, False)]

    def left_out(strength: float) -> float:
        residuals = [(held, held.means @ _ridge(train, strength) - held.observed_ms) for train, held in parts]
        return sum(float(held.weight @ np.square(residual)) for held, residual in residuals)

    return form.with_values(_ridge(design(form, samples), min(RIDGE, key=left_out)))


def _ridge(d: Design, strength: float) -> np.ndarray:
    """float64[free]: least squares with a penalty on the constants of standardised features; w0 is the intercept."""
    x, n = d.means, len(d.observed_ms)
    centre = d.weight @ x
    spread = np.sqrt(d.weight @ np.square(x - centre))
    spread[spread < 1e-9 * np.abs(centre)] = 0.0  # a feature that does not vary here has the constant 0
    z = np.divide(x - centre, spread, out=np.zeros_like(x), where=spread > 0.0)
    height = d.weight @ d.observed_ms
    normal = n * (z.T * d.weight) @ z + strength * np.eye(len(centre))
    values = np.linalg.solve(normal, n * (z.T * d.weight) @ (d.observed_ms - height))
    values = np.where(spread > 0.0, values / np.where(spread > 0.0, spread, 1.0), 0.0)
    values[d.form.names.index("w0")] = height - centre @ values
    return values


def train_lacm(program: Program, samples: Sequence[Sample]) -> Program:
    """Non-negative least squares of the logarithms of the times."""
    form = form_with(program, "exp")
    d = design(form, samples)
    size = np.sqrt(d.weight)
    start, _ = scipy.optimize.nnls(size[:, None] * d.means, size * np.log(US_PER_MS * d.observed_ms))
    return form.with_values(_log_squares(d, start, form.inner))


def _log_squares(d: Design, start: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """float64[free]: the constants of least squares of logarithms, those where `moved`, bool[free], is true.

    Linear least squares where each time has one batch. A load stage has a mixture, whose mean has another logarithm.
    """
    low, high = d.form.bounds
    size, values = np.sqrt(d.weight), np.clip(start, low, high)

    def residuals(x: np.ndarray) -> np.ndarray:
        values[moved] = x
        logs: np.ndarray = size * np.log(d.predicted_ms(values)[0] / d.observed_ms)
        return logs

    values[moved] = solved_within(residuals, values[moved].copy(), low[moved], high[moved])
    return values


def train_hamm(program: Program, samples: Sequence[Sample], models: Mapping[str, str]) -> dict[str, Program]:
    """A program for each mixture of experts, by its model, and "" for all others; `models`: by experiment.

    First g near its physical values, b at its start. Then b on the logarithms of what g leaves of dense models' times
    (of all, if none is dense). Then what mixtures of experts add to these logarithms: a slope by their tokens, and a
    correction of each. A model that was not seen has the mean correction.
    """
    form = form_with(program, "exp")
    moe = [sample for sample in samples if sample.facts["is_moe"]]
    values = _near_physical(design(form, samples))
    slope, correction = form.names.index("b6"), form.names.index("correction")
    base = form.inner & (np.arange(len(values)) != slope) & (np.arange(len(values)) != correction)
    dense = [sample for sample in samples if not sample.facts["is_moe"]] or samples
    values = np.where(form.inner, _log_squares(_left(design(form, dense), values), values, base), values)
    programs = {"": form.with_values(values)}
    if moe:
        d = _left(design(form, moe), values)
        more = np.log(d.observed_ms / d.predicted_ms(np.where(form.inner, values, 0.0))[0])
        names = np.array([models[name] for name in d.experiment])
        each = sorted(set(names))
        columns = np.column_stack([d.means[:, slope], *(names == name for name in each)])
        size = np.sqrt(d.weight)
        values[slope], *corrections = np.linalg.lstsq(size[:, None] * columns, size * more, rcond=None)[0]
        for name, value in zip(["", *each], [np.mean(corrections), *corrections], strict=True):
            values[correction] = value
            programs[name] = form.with_values(values)
    return programs


def _near_physical(d: Design) -> np.ndarray:
    """float64[free]: g by least squares of relative errors, with a penalty of the strength 1 away from its start."""
    values, g = d.form.start, ~d.form.inner
    without, _ = d.predicted_ms(np.where(g, 0.0, values))
    size, near = np.sqrt(d.weight) / d.observed_ms, np.diag(1.0 / values[g])
    rows, target = size[:, None] * d.means[:, g], size * (d.observed_ms - without)
    values[g], _ = scipy.optimize.nnls(np.vstack([rows, near]), np.concatenate([target, near @ values[g]]))
    return values


def _left(d: Design, values: np.ndarray) -> Design:
    """The same without what is not under the link, and at least LEAST_LEFT of each time."""
    g = ~d.form.inner
    left = np.maximum(d.observed_ms - d.means[:, g] @ values[g], LEAST_LEFT * d.observed_ms)
    return replace(d, x=np.where(g, 0.0, d.x), observed_ms=left)


def train_jams(program: Program, samples: Sequence[Sample]) -> Program:
    """All constants in one least-squares problem with a penalty on b, from the roofline."""
    form = form_with(program, "identity")
    penalty = np.where(form.inner, JAMS_PENALTY, 0.0)
    return form.with_values(descend(design(form, samples), form.start, *form.bounds, penalty, np.inf))


def train_srfa(program: Program, samples: Sequence[Sample], from_roofline: bool) -> Program:
    """Huber's loss with penalties on g and on b, on the times of dense models (all, if none is dense).

    Penalties and delta are those of the lowest error on GPUs that are left out in turn; with one GPU, on blocks of
    consecutive times. The imbalance of experts is then the median, over mixtures of experts, of what the others leave
    of a time over router and dispatch.
    """
    form = form_with(program, "softplus")
    kept = timed(map(_tamed, samples)) or list(samples)
    dense = [sample for sample in kept if not sample.facts["is_moe"]] or kept
    low, high = form.bounds
    start = form.start if from_roofline else np.zeros(len(low))
    imbalance = form.names.index("imbalance")
    start[imbalance] = low[imbalance] = high[imbalance] = form.start[imbalance]
    pairs = list(_gpu_folds(dense)) or folds(dense, False)
    parts = [(design(form, train), design(form, held)) for train, held in pairs]

    def solved(d: Design, setting: tuple[float, float, float]) -> np.ndarray:
        of_g, of_b, delta_ms = setting
        penalty = np.where(form.inner, of_b, of_g)
        penalty[imbalance] = 0.0
        return descend(d, start, low, high, penalty, delta_ms)

    def left_out(setting: tuple[float, float, float]) -> float:
        ratios = [(held, held.predicted_ms(solved(train, setting))[0] / held.observed_ms) for train, held in parts]
        return sum(float(held.weight @ np.abs(ratio - 1.0)) for held, ratio in ratios)

    settings = [(g, b, delta) for g in PENALTIES for b in PENALTIES for delta in DELTAS_MS]
    values = solved(design(form, dense), min(settings, key=left_out))
    if experts := [sample for sample in kept if sample.facts["is_moe"]]:
        d = design(form, experts)
        values[imbalance] = 0.0
        ratios = (d.observed_ms - d.predicted_ms(values)[0]) / d.means[:, imbalance]
        order = np.argsort(ratios)
        values[imbalance] = ratios[order][np.searchsorted(np.cumsum(d.weight[order]), 0.5)]
    return form.with_values(values)


def _tamed(sample: Sample) -> Sample:
    """The times without the first steps of the session, winsorised; a load stage has no step."""
    late = sample.where((sample.step < 0) | (sample.step >= FIRST_STEP))
    most = np.quantile(late.observed_us, TAIL) if len(late.observed_us) else np.inf
    return replace(late, observed_us=np.minimum(late.observed_us, most))


def _gpu_folds(samples: Sequence[Sample]) -> Iterator[tuple[list[Sample], list[Sample]]]:
    """(train, held out) times without each GPU; nothing if all have one."""
    gpus = {s.experiment: (s.facts["flops_per_us"], s.facts["bytes_per_us"]) for s in samples}
    for gpu in sorted(set(gpus.values())):
        train = [s for s in samples if gpus[s.experiment] != gpu]
        if train:
            yield train, [s for s in samples if gpus[s.experiment] == gpu]


# The trainings with one program for all models, by the method's training in the catalog.
FOR_ALL = {"nrrl written": train_nrrl, "lacm written": train_lacm, "jams written": train_jams}
FOR_ALL |= {"srfa written": partial(train_srfa, from_roofline=False)}
FOR_ALL |= {"srfa changed": partial(train_srfa, from_roofline=True)}
