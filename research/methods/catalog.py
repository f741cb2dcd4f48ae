"""The methods: what each is, where it comes from, the program that states its form, and how its authors train it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from evaluator.baselines import ROOFLINE_PAPER
from research.methods.recipe import Phase, Recipe
from research.methods.written import FOR_ALL

# How the own protocol finds the constants, where no recipe for steps does.
Special = Literal["closed form, published", "closed form", "replays", "trees", "trees on components", "trees on ratios"]
Written = Literal["nrrl written", "lacm written", "hamm written", "jams written", "srfa written", "srfa changed"]
WRITTEN = (*FOR_ALL, "hamm written")
TREES = ("trees", "trees on components", "trees on ratios")
FALLBACK_PCT = 10.0  # mean error of a deployment's times beyond which SRFA falls back; the limit is our choice
_SRFA_TRAINING = (
    "Huber loss, L-BFGS-B; first 100 steps dropped, winsorised at p99; penalties on g and on b and the corner by "
    "leaving out GPUs (else blocks); imbalance the median MoE residual of a dense fit; on all but the last fifth"
)
SPECIAL: dict[Special | Written, str] = {
    "closed form": "closed form",
    "closed form, published": "closed form, on what the load generator published",
    "replays": "80 replays, expected improvement",
    "trees": "optuna, 100 trials, early stop, smearing by phase",
    "trees on components": "optuna, 100 trials, early stop, smearing by phase",
    "trees on ratios": "optuna, 100 trials, early stop, smearing by phase, on load stages only",
    "nrrl written": "squares; ridge, standardised, penalty 0.01 to 10 by five folds; on all but the last fifth",
    "lacm written": "squares of logarithms, constants at least 0 (NNLS); on all but the last fifth",
    "hamm written": "g near physical times, then b on logarithms of the rest of dense models, then a correction of "
    "each MoE; on all but the last fifth",
    "jams written": "squares, L2 penalty 0.01 on b, L-BFGS-B from the roofline; on all but the last fifth",
    "srfa written": _SRFA_TRAINING,
    "srfa changed": f"{_SRFA_TRAINING}; from the roofline, imbalance at least 1, blackbox for a deployment whose "
    f"times it misses by more than {FALLBACK_PCT:g} %",
}
OURS_WORDS = "our fit on load stages: Gauss-Newton on the mean field, corrected by replays"
_RIDGE = "Hoerl and Kennard 1970, Technometrics 12(1)"
_SMEARING = "Duan 1983, JASA 78"
_BOOSTING = "Friedman 2001, Annals of Statistics 29(5)", "Ke et al. 2017, NeurIPS (LightGBM)"


@dataclass(frozen=True)
class Family:
    """The idea of the original exercise that methods belong to, and what they rest on."""

    idea: str
    citations: tuple[str, ...]


# By the beginning of a method's name, the longest that fits.
FAMILIES = {
    "components": Family("idea 2, analytic components", (ROOFLINE_PAPER,)),
    "phases": Family("idea 2, analytic components", (ROOFLINE_PAPER,)),
    "nrrl": Family("NRRL, normalized roofline residual learning", (ROOFLINE_PAPER, _RIDGE)),
    "lacm": Family("LACM, log-space additive component model", (_SMEARING,)),
    "hamm": Family("HAMM, hybrid additive and multiplicative", ()),
    "jams": Family(
        "JAMS, joint optimization, architecture-derived MoE scaling",
        (ROOFLINE_PAPER, "Byrd et al. 1995, SIAM J. Sci. Comput. 16(5) (L-BFGS-B)"),
    ),
    "srfa": Family(
        "SRFA, softplus regression with complete feature alignment",
        (ROOFLINE_PAPER, "Huber 1964, Annals of Mathematical Statistics 35(1)", _RIDGE),
    ),
    "regimes": Family("round 2, regimes", (_RIDGE,)),
    "regimes-2-log": Family("round 2, log-space target", (_RIDGE, _SMEARING)),
    "overhead": Family("round 2, overhead floors", ()),
    "no-overheads": Family("round 2, regimes without delays", (_RIDGE,)),
    "bayesian": Family("Bayesian calibration", ("Jones, Schonlau and Welch 1998, J. Global Optimization 13",)),
    "trees": Family("tree ensemble", (*_BOOSTING, "Akiba et al. 2019, KDD (optuna)", _SMEARING)),
    "trees-components": Family(
        "idea 1.5, trees on analytic components",
        (ROOFLINE_PAPER, *_BOOSTING, "Akiba et al. 2019, KDD (optuna)", _SMEARING),
    ),
    "direct": Family("round 4, direct calibration", ("Little 1961, Operations Research 9(3)",)),
}

_SRFA = Recipe(
    loss="huber", ridge="standardised", unpenalised=("gamma0", "beta0", "moe"), winsorised=True, first_step=100
)
_GAMMAS, _BETAS = ("gamma0", "gamma1", "gamma2", "gamma3"), ("beta0", "beta1", "beta2", "beta3")
_OF_REGIMES = Phase(free=("p0", "p1", "p2", "p3", "d0", "d1", "d2"))
# The recipes that METHODS names.
RECIPES = {
    "plain": Recipe(),
    "restarts": Recipe(restarts=16),
    "nine": Recipe(restarts=16, stages=(Phase("pure"), Phase("all", ("c7", "c8", "c9")))),
    "components": Recipe(
        restarts=16, stages=(Phase("pure"), Phase("mixed", ("a",)), Phase("all", ("c7", "c8", "c9", "c10")))
    ),
    "ratios": Recipe(ridge="standardised", unpenalised=("base",)),
    "log": Recipe(loss="log", smeared="base"),
    "hamm": Recipe(stages=(Phase("few prompt tokens", _GAMMAS, (("beta0", -30.0),)), Phase("all", _BETAS))),
    "jointly": Recipe(solver="L-BFGS-B"),
    "srfa": _SRFA,
    "srfa log": replace(_SRFA, loss="log"),
    "srfa all steps": replace(_SRFA, winsorised=False, first_step=0),
    "srfa over runs": replace(_SRFA, over_runs=True),
    "ridge 2": Recipe(ridge="raw", unpenalised=("p0", "d0")),
    "ridge 3": Recipe(ridge="raw", unpenalised=("p0", "m0", "d0")),
    "standardised 2": Recipe(ridge="standardised", unpenalised=("p0", "d0")),
    "standardised 3": Recipe(ridge="standardised", unpenalised=("p0", "m0", "d0")),
    "smeared 2": Recipe(
        loss="log", ridge="standardised", unpenalised=("p0", "d0"), smeared="smearing", stages=(_OF_REGIMES,)
    ),
}


@dataclass(frozen=True)
class Method:
    """A method. program: a file of seeds/methods, "" if the training makes it. own: its authors' training. per_model:
    True if each model has its own constants."""

    name: str
    what: str
    program: str
    own: Recipe | Special | Written
    per_model: bool = False

    @property
    def form(self) -> str:
        """The name of its form: methods of one form differ in their own training only."""
        return self.name if self.own in TREES else self.program

    @property
    def family(self) -> Family:
        """Where it comes from."""
        return FAMILIES[max((begin for begin in FAMILIES if self.name.startswith(begin)), key=len)]

    @property
    def training(self) -> str:
        return self.own.words if isinstance(self.own, Recipe) else SPECIAL[self.own]

    @property
    def needs_extra(self) -> bool:
        """True if its own training needs the extra `trees`."""
        return self.own == "replays" or self.own in TREES


# name | what it is | program | a key of RECIPES or SPECIAL | per model
_TABLE = """
components-9 | analytic components, nine constants | components_9 | nine
components-9-per-model | the same nine for each model alone | components_9 | nine | per model
components-12 | with an exponent, partial overlap, and a cost of context | components_12 | components
components-18 | with the corrections that the exercise names | components_18 | components
components-24 | with corrections of all six factors | components_24 | components
phases | the six components alone, from which a search of their combination starts | phases | restarts
nrrl-as-written | as written, without queue depth, KV usage, running requests, chunked prefill, preemptions \
| nrrl_as_written | nrrl written
lacm-as-written | as written, without queue depth, KV usage, prefix hits, phase of an output token \
| lacm_as_written | lacm written
hamm-as-written | as written, without offload, all-to-all, queue depth, KV usage in the queue, prefix hits, context of \
an output token | hamm_as_written | hamm written
jams-as-written | as written, without queue depth, KV usage in the queue, prefix hits, preemptions, context of an \
output token | jams_as_written | jams written
srfa-as-written | as written, without queue depth, KV usage, phase of an output token \
| srfa_as_written | srfa written
srfa-recommended | as written, with its reviewers' five changes and its fallback, without queue depth, KV usage and \
its two thresholds, phase of an output token, preemption history | srfa_recommended | srfa changed
nrrl | our form: ridge on twelve dimensionless ratios | nrrl | ratios
lacm | our form: exponential of a linear form in logarithms | lacm | log
lacm-additive | our form, with additive communication | lacm_additive | log
hamm | our form: additive overheads, multiplicative work | hamm | hamm
jams | our form: all constants jointly, imbalance of experts from the architecture | jams | jointly
srfa | our form: softplus of roofline ratios | srfa | srfa
srfa-log | our form, logarithms instead of Huber's loss | srfa | srfa log
srfa-all-steps | our form, nothing winsorised, no first steps dropped | srfa | srfa all steps
srfa-over-runs | our form, the penalty by leaving runs out, not blocks of steps | srfa | srfa over runs
srfa-additive | our form, communication outside the softplus | srfa_additive | srfa
srfa-experts | our form, the factor of experts on their bytes alone | srfa_experts | srfa
regimes-2-raw | ridge in two regimes, raw counts | regimes_2 | ridge 2
regimes-2-standardised | the penalty in units of each constant's effect | regimes_2 | standardised 2
regimes-2-us | features in microseconds | regimes_2_us | ridge 2
regimes-3-raw | ridge in three regimes, raw counts | regimes_3 | ridge 3
regimes-3-standardised | the penalty in units of each constant's effect | regimes_3 | standardised 3
regimes-3-us | features in microseconds | regimes_3_us | ridge 3
regimes-2-log | logarithms of times, with smearing | regimes_2_log | smeared 2
overhead-floor | two regimes, never below a floor | overhead_floor | plain
overhead-capped | a floor that lifts no step to more than three times its own | overhead_capped | plain
overhead-additive | two regimes and an overhead | overhead_additive | plain
no-overheads | queueing and output processing take no time | regimes_2_us_alone | ridge 2
bayesian | Gaussian process over the E2E of replays, all constants jointly | overhead_additive | replays
trees | gradient-boosted trees on 28 features of a step | | trees
trees-components | the same on the six components too | | trees on components
trees-ratio | components-12, corrected by trees on ratios of load stages to it | components_12 | trees on ratios
direct | closed form, with true lengths and ITL | direct | closed form | per model
direct-published | closed form, with the generator's lengths and ITL | direct | closed form, published | per model
"""


def _method(row: str) -> Method:
    name, what, program, own, *per_model = (cell.strip() for cell in row.split("|"))
    special = {word: word for word in SPECIAL}
    return Method(name, what, program, RECIPES[own] if own in RECIPES else special[own], bool(per_model))


METHODS = tuple(map(_method, _TABLE.strip().splitlines()))
