"""`evolve emit --coefficients`: the numbers of a program of the host's trained-physics form, as YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evolve import __version__
from evolve.output.files import check_writable
from evolve.output.terminal import command, say, warn
from evolve.output.writing import STDOUT, write
from evolve.run.data import fittable
from evolve.run.program import TRAINED_PHYSICS, Source, load
from simulator.common.errors import InputError
from simulator.common.text import counted
from simulator.language.ir import Function, Program
from simulator.serving.bundled import bundled_experiments
from translate_go.coefficients import NotAffine
from translate_go.coefficients import coefficients as weights_of
from translate_go.naming import clean

# In the host's order, by their names in seeds/trained_physics.py. The eleventh, of the exchange between data-parallel
# ranks, multiplies nothing that the form has; published and by default it is b4, so it is written as that.
BETA = ("b1a", "b2a", "b3", "b4", "b5", "b6", "b7", "b8", "b1b", "b2b")
EXCHANGE, ELEVENTH = "b4", "b_EP"
ALPHA = ("queueing_time", "completion_time", "output_token_time")
HEAD = "# The host's trained-physics coefficients"  # how the block begins; files that do not are never replaced
DECIDED = 0.5  # the least share of what is known of a coefficient that comes from the runs, not from before
DIGITS = 1e-5  # relative: a fit writes six digits
KEPT = "Kept as published"
SAME = 1e-9  # relative: two ways to write the form round differently


@dataclass(frozen=True, slots=True)
class HostCoefficients:
    """alpha: us in the queue, at completion and for each output token. beta: the eleven in the host's order."""

    alpha: tuple[float, ...]
    beta: tuple[float, ...]


def coefficients_of(program: Program, name: str) -> HostCoefficients:
    """The coefficients of a program of exactly the trained-physics form, in which terms may be missing.

    Raises InputError, naming what differs, for any other program, and for a coefficient below 0.
    """
    step = program.function("step_time")
    assert step is not None, name
    beta = dict(zip(BETA, _beta(_weights(step, name), name), strict=True))
    alpha = tuple(_alpha(program.function(method), name) for method in ALPHA)
    for which, value in (*beta.items(), *zip(ALPHA, alpha, strict=True)):
        if not (math.isfinite(value) and value >= 0.0):
            raise InputError(f"{name}: {which} is {value:g}, which the host refuses: fit the program, or correct it")
    return HostCoefficients(alpha, (*beta.values(), beta[EXCHANGE]))


def _beta(weights: Mapping[str, float], name: str) -> list[float]:
    form = load(TRAINED_PHYSICS).complete.function("step_time")
    assert form is not None
    units = {c.name: _weights(_with_one(form, c.name), TRAINED_PHYSICS) for c in form.constants}
    firsts = {c: next(feature for feature, weight in unit.items() if weight) for c, unit in units.items()}
    beta = {c: weights.get(firsts[c], 0.0) / units[c][firsts[c]] for c in BETA}
    for feature in dict.fromkeys((*weights, *(f for unit in units.values() for f in unit))):
        expected = sum(beta[c] * units[c].get(feature, 0.0) for c in BETA)
        if not math.isclose(weights.get(feature, 0.0), expected, rel_tol=SAME):
            raise _unlike(name, f"step_time weighs {feature or 'its constant'} otherwise")
    return [beta[c] for c in BETA]


def _with_one(form: Function, name: str) -> Function:
    theta = tuple(float(c.name == name) for c in form.constants)
    return Program((form,)).with_theta(theta).functions[0]


def _alpha(function: Function | None, name: str) -> float:
    weights = _weights(function, name) if function else {}
    if other := next((feature for feature, weight in weights.items() if feature and weight), None):
        raise _unlike(name, f"{function.name if function else ''} depends on {other}")
    return weights.get("", 0.0)


def _weights(function: Function, name: str) -> dict[str, float]:
    """The weight of every feature, "" for the constant, with batch fields written out."""
    try:
        return {feature: c.value for feature, c in weights_of(function, {}).items()}
    except NotAffine:
        raise _unlike(name, f"{function.name} is no weighted sum") from None


def _unlike(name: str, why: str) -> InputError:
    problem = f"{name}: is not of the host's trained-physics form ({why})"
    return InputError(f"{problem}: use `trained_physics` or a fitted copy of it, or emit Go")


def has_coefficients(program: Program) -> bool:
    """Whether `coefficients_of` can write the program."""
    try:
        coefficients_of(program, "")
    except InputError:
        return False
    return True


def block(coefficients: HostCoefficients, source: Source) -> str:
    """The block of YAML. Its header names the source of the numbers: published, or decided by the runs, or hardly."""
    fitted = source.record.fitted if source.record else ()
    origin = f"fitted on {counted(len(fitted), 'experiment')}" if fitted else "no record of a fit"
    origins = origins_of(source)
    notes = {
        KEPT: origins.kept,
        "Hardly decided by the fitted runs": origins.undecided,
        "At a bound, where the fit had to stop": origins.bounded,
    }
    lines = "".join(f"# {what}: {', '.join(_with_eleventh(names))}.\n" for what, names in notes.items() if names)
    cautions = "".join(f"# Before you use it: {clean(text)}.\n" for text in source.cautions)
    return (
        f"{HEAD}: {clean(source.name)}, {origin}, evolve-latency {__version__}.\n"
        "# alpha in us: before the queue, at completion, per output token.\n"
        f"# beta: {', '.join(BETA)}, {ELEVENTH} (as {EXCHANGE}, the host's own default).\n"
        f"{lines}"
        f"{cautions}"
        "trained_physics_coefficients:\n"
        f"  alpha_coeffs: [{', '.join(map(repr, coefficients.alpha))}]\n"
        f"  beta_coeffs: [{', '.join(map(repr, coefficients.beta))}]\n"
    )


@dataclass(frozen=True, slots=True)
class Origins:
    """The origin of a fitted program's coefficients, by the names of the form's constants.

    kept: as published, because they were held or the runs did not move them. bounded: moved to a bound of the form.
    undecided: moved elsewhere, though the runs hardly decide them. decided: all others.
    """

    kept: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()


def origins_of(source: Source) -> Origins:
    """The origin of the coefficients by the record of the last fit; nothing without one."""
    records = (source.record.constants if source.record else None) or {}
    form = load(TRAINED_PHYSICS).complete
    published, values = _values(form), _values(source.complete)
    overheads = {f.name: f.constants[0].name for f in form.functions if f.name in ALPHA}
    lists: dict[str, list[str]] = {"kept": [], "bounded": [], "undecided": [], "decided": []}
    for name, c in records.items():
        doubtful = c.data_share is None or c.data_share < DECIDED
        same = name in values and math.isclose(values[name], published.get(name, math.nan), rel_tol=DIGITS)
        moved = "bounded" if c.bound else "undecided" if doubtful else "decided"
        which = "kept" if same and (c.held or doubtful) else moved
        method, constant = name.split(".")
        lists[which].append(overheads.get(method, constant))  # an overhead that was 0 is not in the text
    return Origins(*map(tuple, lists.values()))


def _values(program: Program) -> dict[str, float]:
    return {f"{f.name}.{c.name}": c.value for f in program.functions for c in f.constants}


def _with_eleventh(names: Sequence[str]) -> list[str]:
    """The names, with the eleventh coefficient next to the one that it is written as."""
    return [text for name in names for text in ((name, ELEVENTH) if name == EXCHANGE else (name,))]


def _keeping(source: Source, origins: Origins) -> str:
    """The command that fits only what the runs decide, from the published coefficients."""
    fitted = source.record.fitted if source.record else ()
    shipped = [e.id for e in fittable(bundled_experiments())]
    own = [] if set(fitted) <= set(shipped) else ["--experiments", "FILE"]
    ids = [] if set(fitted) == set(shipped) else ["--id", ",".join(fitted)]
    only = ",".join(origins.decided)
    return command("fit", TRAINED_PHYSICS, "--only", only, *own, *ids, "--out", "held.py")


def emit_coefficients(source: Source, out: Path | None) -> None:
    """Print the block of YAML, or write it to the file `out`. Raises InputError if it cannot be made or written.

    Coefficients that were kept as published are named on stderr. So are those that the runs of the fit do not decide,
    with the command that keeps them.
    """
    if out:
        check_writable(out, "--out")
        if out.exists() and not out.read_bytes().startswith(HEAD.encode()):
            raise InputError(f"{out}: was not written by evolve emit: move it away, or choose another --out")
    text = block(coefficients_of(source.complete, source.name), source)
    for caution in source.cautions:
        warn(caution)
    origins = origins_of(source)
    if origins.kept:
        say(f"{KEPT}: {', '.join(_with_eleventh(origins.kept))}", err=True)
    if origins.bounded:
        names = ", ".join(_with_eleventh(origins.bounded))
        warn(
            f"the fit took {names} to a bound: the fitted runs do not show what this stands for, or constants that "
            "were held should have moved instead. Read the errors that evolve fit printed before you use this"
        )
    if origins.undecided:
        names = ", ".join(_with_eleventh(origins.undecided))
        warn(
            f"the fitted runs hardly decide {names}: do not rely on predictions for models, GPUs or loads on which "
            "these weigh more. Fit runs on which they do, or keep these as published"
        )
        if origins.decided:
            say(f"  {_keeping(source, origins)}", err=True)
    write(text, str(out or STDOUT), "--out")
    if out is None:
        return
    say(f"{out}: written; paste it into the host's defaults.yaml, in place of the block of that name")
