"""The methods: what each is, where it comes from, the program that states its form, and how its authors train it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evaluator.baselines import ROOFLINE_PAPER
from research.methods.recipe import Phase, Recipe

# How the own protocol finds the constants, where no recipe for steps does.
Special = Literal["closed form, published", "closed form", "replays", "trees", "trees on components", "trees on ratios"]

TREES = ("trees", "trees on components", "trees on ratios")
SPECIAL: dict[Special, str] = {
    "closed form": "closed form",
    "closed form, published": "closed form, on what the load generator published",
    "replays": "80 replays, expected improvement",
    "trees": "optuna, 100 trials, early stop, smearing by phase",
    "trees on components": "optuna, 100 trials, early stop, smearing by phase",
    "trees on ratios": "optuna, 100 trials, early stop, smearing by phase, on load stages only",
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
    "nrrl": Family("NRRL, normalised roofline ratios", (ROOFLINE_PAPER, _RIDGE)),
    "lacm": Family("LACM, log-additive cost model", (_SMEARING,)),
    "hamm": Family("HAMM, hybrid additive-multiplicative", ()),
    "jams": Family(
        "JAMS, joint additive model", (ROOFLINE_PAPER, "Byrd et al. 1995, SIAM J. Sci. Comput. 16(5) (L-BFGS-B)")
    ),
    "srfa": Family(
        "SRFA, smooth roofline factors", (ROOFLINE_PAPER, "Huber 1964, Annals of Mathematical Statistics 35(1)", _RIDGE)
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

_COMPONENTS = Recipe(
    restarts=16,
    stages=(Phase("pure"), Phase("mixed", ("a",)), Phase("all", ("c7", "c8", "c9", "c10"))),
)
_RIDGE_2 = Recipe(ridge="raw", unpenalised=("p0", "d0"))
_SRFA = Recipe(
    loss="huber", ridge="standardised", unpenalised=("gamma0", "beta0", "moe"), winsorised=True, first_step=100
)


@dataclass(frozen=True)
class Method:
    """A method. program: a file of seeds/methods, "" if the training makes it. own: its authors' training. per_model:
    True if each model has its own constants."""

    name: str
    what: str
    program: str
    own: Recipe | Special
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
        """Its authors' own training in words."""
        return self.own.words if isinstance(self.own, Recipe) else SPECIAL[self.own]

    @property
    def needs_extra(self) -> bool:
        """True if its own training needs the extra `trees`."""
        return self.own == "replays" or self.own in TREES


METHODS: tuple[Method, ...] = (
    Method(
        "components-9",
        "analytic components, nine constants",
        "components_9",
        Recipe(restarts=16, stages=(Phase("pure"), Phase("all", ("c7", "c8", "c9")))),
    ),
    Method(
        "components-9-per-model",
        "the same nine for each model alone",
        "components_9",
        Recipe(restarts=16, stages=(Phase("pure"), Phase("all", ("c7", "c8", "c9")))),
        per_model=True,
    ),
    Method("components-12", "with an exponent, partial overlap, and a cost of context", "components_12", _COMPONENTS),
    Method("components-18", "with the corrections that the exercise names", "components_18", _COMPONENTS),
    Method("components-24", "with corrections of all six factors", "components_24", _COMPONENTS),
    Method(
        "phases",
        "the six components alone, from which a search of their combination starts",
        "phases",
        Recipe(restarts=16),
    ),
    Method("nrrl", "ridge on twelve dimensionless ratios", "nrrl", Recipe(ridge="standardised", unpenalised=("base",))),
    Method("lacm", "exponential of a linear form in logarithms", "lacm", Recipe(loss="log", smeared="base")),
    Method("lacm-additive", "with additive communication", "lacm_additive", Recipe(loss="log", smeared="base")),
    Method(
        "hamm",
        "additive overheads, multiplicative work",
        "hamm",
        Recipe(
            stages=(
                Phase("few prompt tokens", ("gamma0", "gamma1", "gamma2", "gamma3"), (("beta0", -30.0),)),
                Phase("all", ("beta0", "beta1", "beta2", "beta3")),
            )
        ),
    ),
    Method(
        "jams", "all constants jointly, imbalance of experts from the architecture", "jams", Recipe(solver="L-BFGS-B")
    ),
    Method("srfa", "softplus of roofline ratios", "srfa", _SRFA),
    Method(
        "srfa-log",
        "first repair: logarithms instead of Huber's loss",
        "srfa",
        Recipe(loss="log", ridge="standardised", unpenalised=_SRFA.unpenalised, winsorised=True, first_step=100),
    ),
    Method(
        "srfa-all-steps",
        "second repair: nothing winsorised, no first steps dropped",
        "srfa",
        Recipe(loss="huber", ridge="standardised", unpenalised=_SRFA.unpenalised),
    ),
    Method(
        "srfa-over-runs",
        "third repair: the penalty by leaving runs out, not blocks of steps",
        "srfa",
        Recipe(
            loss="huber",
            ridge="standardised",
            unpenalised=_SRFA.unpenalised,
            winsorised=True,
            first_step=100,
            over_runs=True,
        ),
    ),
    Method("srfa-additive", "fourth repair: communication outside the softplus", "srfa_additive", _SRFA),
    Method("srfa-experts", "fifth repair: the factor of experts on their bytes alone", "srfa_experts", _SRFA),
    Method("regimes-2-raw", "ridge in two regimes, raw counts", "regimes_2", _RIDGE_2),
    Method(
        "regimes-2-standardised",
        "the penalty in units of each constant's effect",
        "regimes_2",
        Recipe(ridge="standardised", unpenalised=("p0", "d0")),
    ),
    Method("regimes-2-us", "features in microseconds", "regimes_2_us", _RIDGE_2),
    Method(
        "regimes-3-raw",
        "ridge in three regimes, raw counts",
        "regimes_3",
        Recipe(ridge="raw", unpenalised=("p0", "m0", "d0")),
    ),
    Method(
        "regimes-3-standardised",
        "the penalty in units of each constant's effect",
        "regimes_3",
        Recipe(ridge="standardised", unpenalised=("p0", "m0", "d0")),
    ),
    Method(
        "regimes-3-us", "features in microseconds", "regimes_3_us", Recipe(ridge="raw", unpenalised=("p0", "m0", "d0"))
    ),
    Method(
        "regimes-2-log",
        "logarithms of times, with smearing",
        "regimes_2_log",
        Recipe(
            loss="log",
            ridge="standardised",
            unpenalised=("p0", "d0"),
            smeared="smearing",
            stages=(Phase(free=("p0", "p1", "p2", "p3", "d0", "d1", "d2")),),
        ),
    ),
    Method("overhead-floor", "two regimes, never below a floor", "overhead_floor", Recipe()),
    Method(
        "overhead-capped", "a floor that lifts no step to more than three times its own", "overhead_capped", Recipe()
    ),
    Method("overhead-additive", "two regimes and an overhead", "overhead_additive", Recipe()),
    Method("no-overheads", "queueing and output processing take no time", "regimes_2_us_alone", _RIDGE_2),
    Method(
        "bayesian", "Gaussian process over the E2E of replays, all constants jointly", "overhead_additive", "replays"
    ),
    Method("trees", "gradient-boosted trees on 28 features of a step", "", "trees"),
    Method("trees-components", "the same on the six components too", "", "trees on components"),
    Method(
        "trees-ratio",
        "components-12, corrected by trees on ratios of load stages to it",
        "components_12",
        "trees on ratios",
    ),
    Method("direct", "closed form, with true lengths and ITL", "direct", "closed form", per_model=True),
    Method(
        "direct-published",
        "closed form, with the generator's lengths and ITL",
        "direct",
        "closed form, published",
        per_model=True,
    ),
)
