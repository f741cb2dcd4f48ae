"""Offline proposals: always programs of the language, deterministic, and each operator does what it is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from grown import RUNS, SEEDS, WORDS

from evolve.run.config import FIELD_SETS, OPERATORS
from evolve.search.offline import CHANGES, PROBING, _without_floor, context_degree, propose
from evolve.search.vocabulary import Vocabulary, field_set, vocabulary
from simulator.clock.fields import Active, BatchFields
from simulator.language import units
from simulator.language.evaluate import evaluate
from simulator.language.infer import check_units
from simulator.language.ir import Call, Const, Expr, Field, Program, nodes, rebuild, walk
from simulator.language.measure import Caps, complaints, features, operations
from simulator.language.normal import Normal
from simulator.language.opcodes import formula
from simulator.language.parse import parse
from simulator.language.terms import coefficient_unit, draft, function_of, get, join, sites, split, summands
from simulator.language.unparse import spell, unparse
from simulator.schema import marked
from simulator.serving.bundled import bundled_experiments


def rng(i: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([0, i])))


class Any:
    """Answers of a probe that knows nothing: gains and costs at random."""

    def __init__(self) -> None:
        self.rng = rng(99)

    def gains(self, program: Program, method: str, terms: Sequence[Sequence[Expr]]) -> np.ndarray:
        return self.rng.random(len(terms))

    def costs(self, program: Program) -> np.ndarray:
        return self.rng.random(len(program.theta))


@pytest.mark.parametrize("words", [WORDS, vocabulary(RUNS, "datasheet")])
def test_five_hundred_proposals_are_programs_with_right_units(words: Vocabulary) -> None:
    known = {f"{f.scope}.{f.name}" for f in words.step} | {"s.reference_step_us"}
    pool = [p for p in SEEDS if words.measured or set(features(p)) <= known]
    used, probe = Counter[str](), Any()
    for i in range(500):
        generator = rng(i)
        first, second = (pool[generator.integers(len(pool))] for _ in range(2))
        child, operator = propose(first, second, words, generator, probe=probe)
        used.update(operator.split("+"))
        again = parse(unparse(child))
        assert again == child
        check_units(child, f"{i} {operator}")
        if operations(child) <= 40:
            pool.append(child)
    assert set(used) - {"none"} == set(OPERATORS)


def test_beside_kernels_a_program_counts_all_of_them_in_every_step() -> None:
    """A hundred changes of the seed that sums them, one on top of the other, drop no kernel and shorten none."""
    kernels = {f"b.{f.name}" for f in walk(formula("kernel_us")) if isinstance(f, Field)}
    child, probe = next(p for p in SEEDS if kernels <= set(features(p))), Any()
    for i in range(100):
        child, _ = propose(child, child, WORDS, rng(i), probe=probe)
        normal = Normal(expand=False)
        summed = _without_floor(child.functions[0])
        assert summed is not child.functions[0], i  # the time that the host needs stays under it
        products = [[normal.atoms[a] for a, _ in product] for product, _ in normal.function(summed)]
        fields = [[atom.name for atom in atoms if atom.kind == "field"] for atoms in products]
        assert kernels <= {names[0] for names in fields if len(names) == 1}, i


def test_every_offered_field_has_a_size_on_the_typical_batch() -> None:
    """Start values of constants are computed from it: a field of size 0 would get one that says nothing."""
    # a chunk beyond the graphs; weights that few models have; deployments that these runs have not
    unusual = {"b.uncaptured", "b.kernel_moe_quantized_us", *(f"s.{f.name}" for f in marked("switch"))}
    for allowed in FIELD_SETS:
        words = vocabulary(bundled_experiments(), allowed)
        offered = {*words.step, *words.queueing, *words.norms, *(f for scale in words.scales for f in scale)}
        without = {f"{f.scope}.{f.name}" for f in offered if not words.typical[f.scope, f.name] > 0.0}
        assert without <= unusual, allowed


def test_a_wrap_keeps_every_term() -> None:
    """A floor, a max or min of two parts, and a root or logarithm of a factor leave no field out."""
    words, wrapped = vocabulary(RUNS, "datasheet"), Counter[str]()
    known = {f"{f.scope}.{f.name}" for f in words.step} | {"s.reference_step_us"}
    parents = [p for p in SEEDS if set(features(p)) <= known]
    for i in range(120):
        parent = parents[i % len(parents)]
        child, operator = propose(parent, parent, words, rng(i), "step", {"wrap": 1.0})
        if operator == "wrap":
            assert set(features(child)) >= set(features(parent)), unparse(child)
            wrapped.update(n.name for n in nodes(child.functions[0]) if isinstance(n, Call))
    assert min(wrapped[name] for name in ("max", "min", "sqrt", "log1p")) > 0


@pytest.mark.parametrize("method", ["step", "queueing"])
def test_only_the_chosen_method_changes(method: str) -> None:
    for i in range(100):
        child, _ = propose(SEEDS[1], SEEDS[2], WORDS, rng(i), method)
        kept = "queueing_time" if method == "step" else "step_time"
        assert child.function(kept) == SEEDS[1].function(kept)


def test_field_sets_hold_for_proposals() -> None:
    for name in ("paper18", "components"):
        allowed = field_set(name)
        assert allowed is not None
        words = vocabulary(RUNS, name)
        start = [s for s in SEEDS if set(features(Program(s.functions[:1]))) <= allowed]
        assert start, name
        for i in range(200):
            child, _ = propose(start[i % len(start)], start[0], words, rng(i))
            assert set(features(Program(child.functions[:1]))) <= allowed


def test_weights_choose_the_operators() -> None:
    for i in range(30):
        child, name = propose(SEEDS[0], SEEDS[1], WORDS, rng(i), "both", {"add": 1.0})
        assert name in ("add", "add+add")
        assert (child, name) == propose(SEEDS[0], SEEDS[1], WORDS, rng(i), "both", {"add": 1.0})
    # an operator without a weight would never be drawn, in silence
    assert {*CHANGES, *PROBING, "exchange"} == set(OPERATORS)


def test_draft_keeps_the_meaning_of_lets_and_guards() -> None:
    text = """
def step_time(b, s, *, a: us = 3.0, c=4.0):
    x = a + b.kv_read_us
    if b.tokens > c:
        return x * 2
    y = x + 1
    return y / x
"""
    program = parse(text)
    flat = Program((function_of(draft(program.functions[0])),))
    for decodes in range(8):
        fields = BatchFields([Active(10, 10 + 3 * i, 1) for i in range(decodes)], RUNS[0].facts)
        assert evaluate(flat.functions[0], fields) == evaluate(program.functions[0], fields)
    expr = parse("def step_time(b, s, *, a=3.0): return a - b.tokens + s.layers * a - 1").functions[0].result
    assert join(split(expr)) == expr
    for names, unit in (
        ((), "us"),
        ((("s", "layers"), ("b", "batch_size")), "us/request"),
        ((("b", "kv_read_us"),), "one"),
    ):
        assert units.spell(coefficient_unit([Field(*name) for name in names], {})) == unit


def test_new_constants_are_named_after_their_term() -> None:
    names = set()
    for i in range(60):
        child, _ = propose(SEEDS[0], SEEDS[0], WORDS, rng(i), "step", {"add": 1.0})
        declared = {c.name for c in child.functions[0].constants}
        assert declared == {n.name for n in nodes(child.functions[0]) if isinstance(n, Const)}
        names |= declared
    assert any(name.startswith("kv_") for name in names)


def test_no_proposal_repeats_a_term() -> None:
    def spelled(term: Expr) -> str:
        return spell(rebuild(term, lambda n: Const("c") if isinstance(n, Const) else n))

    for i in range(300):
        parents = SEEDS[i % len(SEEDS)], SEEDS[(i + 1) % len(SEEDS)]
        child, _ = propose(*parents, WORDS, rng(i), "both", {"add": 1.0, "cross": 1.0})
        for d in map(draft, child.functions):
            for site in sites(d.expr):
                terms = [spelled(t) for _, t in summands(get(d.expr, site), site)]
                assert len(terms) == len(set(terms)), unparse(child)


@pytest.mark.parametrize(
    ("formula", "degree"),
    [
        ("b.kv_sum * s.layers + b.tokens * b.tokens", 1),
        ("max(b.kv_read_us, b.total_flops / s.flops_per_us)", 1),
        ("b.kv_mean * b.kv_read_us", 2),
        ("sqrt(b.kv_decode_max / s.max_num_batched_tokens)", 2),
        ("b.tokens / b.kv_sum", 2),
        ("sqrt(b.tokens / s.max_num_batched_tokens)", 0),
        ("b.kv_var", 2),
        ("sqrt(b.decode_bytes_us)", 2),
        ("b.decode_bytes_us * b.kv_sum", 2),
        ("b.prefill_bytes_us + b.host_decode_kv_us", 1),
    ],
)
def test_degree_in_the_contexts_by_hand(formula: str, degree: int) -> None:
    assert context_degree(parse(f"def step_time(b, s): return {formula}").functions[0].result) == degree


def test_no_proposal_bends_a_step_in_its_contexts() -> None:
    program, probe = SEEDS[0], Any()
    for i in range(300):
        program, _ = propose(program, SEEDS[i % len(SEEDS)], WORDS, rng(i), probe=probe, caps=Caps())
        step = program.function("step_time")
        assert step is not None and context_degree(draft(step).expr) <= 1
        assert not complaints(program, Caps())
