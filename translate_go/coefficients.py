"""defaults.yaml of the frozen branch: alpha and beta coefficients of a program that is one dot product, or a remark."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.language.affine import WrittenTerm
from simulator.language.guarded import div
from simulator.language.infer import infer
from simulator.language.ir import Const, Constant, Expr, Function, Local, Op, Program, walk
from simulator.language.measure import features
from simulator.language.normal import BRANCHES, Monomial, Normal, Polynomial, reachable
from simulator.language.unparse import spell
from translate_go.deployment import Deployment
from translate_go.naming import DEFAULT, BackendName, clean
from translate_go.target import reads_kernels
from translate_go.vectors import reference_step_us


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A coefficient in microseconds per unit of its feature; `unit` is the text for that (`us/token`)."""

    value: float
    unit: str = "us"


DEFAULTS = "defaults.yaml"  # the file's name
Coefficients = dict[str, Coefficient]  # feature as an expression of fields, "" for the intercept

_ELSEWHERE = """\
# Nothing to merge: <why>.
# There are no alpha and beta coefficients; the constants are in <file>.
"""
_NOTE = """\
# For the `models` list of defaults.yaml on the host's branch stepml-experiments. The main branch refuses a file with
# this list. The generated backend does not read it either: its constants are in <file>.
# The host takes the entry whose id, GPU, tensor_parallelism and vllm_version equal --model (in lower case), --hardware,
# --tp and --vllm-version as given, and its total_kv_blocks unless --total-kv-blocks is given.
# alpha: queueing = alpha[0] + alpha[1] * input length; alpha[2] per output token. The times of scheduling and
# preemption have no coefficients.
"""
_SAME = """\
# beta: the host's own features in order: intercept, prefill tokens, decode tokens.
"""
_OTHER = """\
# beta: intercept, then one coefficient for each feature named next to it. These are NOT the features of the host's own
# backends, which would misread the numbers: the entry documents the model, do not merge it.
"""
_HOST = {"": "us", "b.prefill_tokens": "us/token", "b.decode_reqs": "us/request"}
_GPU = {"H100-SXM-80GB": "H100", "A100-SXM-80GB": "A100-80"}  # as the branch's own file spells them


class NotAffine(Exception):
    """The program has no coefficients; the message says why."""

    def __init__(self, why: str = "this program is not one dot product of features of the batch") -> None:
        super().__init__(why)


def defaults_yaml(program: Program, deployments: Sequence[Deployment], name: BackendName = DEFAULT) -> str:
    """The text of the file, with an entry for each deployment in which its facts are numbers.

    Without deployments it has one entry to fill in.
    """
    try:
        if reads_kernels(program):
            raise NotAffine("this program reads curves of measured kernels, for which the host has no features")
        if program.reads_trees:
            raise NotAffine("this program reads an ensemble of trees, for which the host has no feature")
        entries = [_entry(program, deployment) for deployment in deployments or [Deployment("", {})]]
    except NotAffine as why:
        return name.fill(_ELSEWHERE, why=why, file=name.file())
    return name.fill(_NOTE, file=name.file()) + "models:\n" + "".join(entries)


def _entry(program: Program, deployment: Deployment) -> str:
    """The entry of a deployment, after a remark on its features. Raises NotAffine."""
    facts = dict(deployment.facts)
    step = coefficients(program.function("step_time"), facts)
    if facts and "s.reference_step_us" in features(program):
        facts["reference_step_us"] = reference_step_us(program, facts)
    queueing = coefficients(program.function("queueing_time"), facts)
    token = coefficients(program.function("output_token_time"), facts)
    if set(queueing) - {"", "r.input_len"} or set(token) - {""}:
        if facts:
            raise NotAffine("the delay before the queue is not alpha[0] + alpha[1] * input length")
        raise NotAffine("the delays depend on the deployment, and none is given")
    none = Coefficient(0.0)
    alpha = [
        (queueing.get("", none).value, "us"),
        (queueing.get("r.input_len", none).value, "us/token of the prompt"),
        (token.get("", none).value, "us per output token"),
    ]
    if set(step) <= set(_HOST):
        remark = _SAME
        step = {name: step.get(name, Coefficient(0.0, unit)) for name, unit in _HOST.items()}
    else:
        remark = _OTHER
    beta = [(c.value, f"{name or 'intercept'}, {c.unit}") for name, c in step.items()]
    fill = "" if facts else "  # fill in"
    version, unknown = "", "  # none is known: fill in"
    if deployment.engine_version:  # spelled as in the branch's own file
        version, unknown = f"vllm/vllm-openai:v{clean(deployment.engine_version)}", ""
    lines = [
        f"- GPU: {json.dumps(_GPU.get(deployment.hardware, clean(deployment.hardware)) or 'GPU')}{fill}",
        *_numbers("alpha_coeffs", alpha),
        *_numbers("beta_coeffs", beta),
        f"  id: {json.dumps(clean(deployment.model or deployment.name).lower() or 'model')}{fill}",
        f"  tensor_parallelism: {int(facts.get('tp', 1))}{fill}",
        f"  total_kv_blocks: {int(facts.get('kv_blocks', 0))}{fill}",
        f"  vllm_version: {json.dumps(version)}{unknown}",
    ]
    return remark + "\n".join(lines) + "\n"


def _numbers(key: str, numbers: Sequence[tuple[float, str]]) -> list[str]:
    return [f"  {key}:", *(f"  - {_number(number)}  # {what}" for number, what in numbers)]


def _number(value: float) -> str:
    """A float64 as a number in YAML 1.1 and 1.2: 1.0e-05, because 1e-05 is a string in the first."""
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa}.0{e}{exponent}" if e and "." not in mantissa else repr(value)


def coefficients(function: Function | None, facts: Mapping[str, float]) -> Coefficients:
    """The method as a weighted sum of features, with `facts` as numbers; {} if it is missing. Raises NotAffine."""
    if function is None:
        return {}
    normal = Normal(values={("s", name): value for name, value in facts.items()})
    root, written = normal.function(function), WrittenTerm(normal)
    constants = {c.name: c.value for c in function.constants}
    values: dict[Monomial, float] = {(): 0.0}
    for m, coefficient in root:
        basis: Monomial = ()
        for i, power in m:
            atom = normal.atoms[i]
            if atom.kind == "const":
                coefficient *= _raised(constants[atom.name], power)
            elif _fixed(normal, i):
                basis += ((i, power),)
            else:
                raise NotAffine
        values[basis] = values.get(basis, 0.0) + coefficient
    weights = {"": Coefficient(values.pop(()))}
    if not all(map(math.isfinite, values.values())):
        raise NotAffine
    for m, value in values.items():
        feature = written.expression(((m, 1.0),))
        if any(isinstance(n, Local) for n in walk(feature)):
            raise NotAffine  # too large to be written out
        weights[spell(feature)] = Coefficient(value, _unit(function.name, feature))
    return weights


def _fixed(normal: Normal, i: int) -> bool:
    """True if the atom contains neither branches nor constants."""
    below: Polynomial = ((((i, 1),), 1.0),)
    return all(normal.atoms[n].kind not in ("const", *BRANCHES) for n in reachable(normal, below))


def _raised(value: float, power: int) -> float:
    """A power in the guarded arithmetic, in which 1/0 is 0."""
    try:
        return value**power if power > 0 else div(1.0, value**-power) if power else div(value, value)
    except OverflowError:
        return math.inf


def _unit(method: str, feature: Expr) -> str:
    term = Function(method, (Constant("c", 1.0),), (), Op("*", Const("c"), feature))
    return infer(term).units["c"] or "us per unit of it"
