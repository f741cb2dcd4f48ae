"""Ensembles of trees: their walk, their file, and the programs that read them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml
from forests import TREES_TEXT, random_forest
from plain_clock import FACTS

from simulator.clock.bind import Deployments, bind
from simulator.clock.fields import Active, BatchFields, raw_row
from simulator.clock.steps import DIRECT, WHOLE, piece_for, recall, steps_of
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.language.blend import blend
from simulator.language.complete import complete
from simulator.language.forest import LEAF, Corrections, Forest, Tree
from simulator.language.forest_file import MOST_NODES, forest_file, forest_of, read_forest, with_forest
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.measure import features
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.language.simplify import brief, lean
from simulator.language.source import ProgramError
from simulator.serving.load import EngineLimits
from translate_go.vectors import batches

# tokens <= 100: 1, else decodes <= 2: 2, else 4
STUMP = Tree(
    (0, LEAF, 1, LEAF, LEAF), (100.0, 0.0, 2.0, 0.0, 0.0), (1, 0, 3, 0, 0), (2, 0, 4, 0, 0), (0, 1.0, 0, 2.0, 4.0)
)
ONLY_LEAF = Tree((LEAF,), (0.0,), (0,), (0,), (0.25,))
FOREST = Forest(("b.tokens", "b.decode_reqs * 1"), (STUMP, ONLY_LEAF), 0.5, Corrections(0.1, 0.2, 0.3))
PROGRAM = parse(TREES_TEXT).with_forest(FOREST)
SCALE = 1.25
EVERY = [
    "b.kv_sum",
    "b.kv_mean / 3",
    "b.kv_var",
    "b.experts_fraction * 9",
    "b.graph_batch",
    "b.tokens / s.tp",
    "b.weight_read_us",
]


def step_us(program: Program, batch: list[Active]) -> float:
    return bind(assemble(program), program.theta, FACTS).step_us(raw_row(batch))


def decodes(n: int, context: int = 50) -> list[Active]:
    return [Active(10, context, 1)] * n


@pytest.mark.parametrize(
    ("batch", "sum_of_leaves"),
    [
        ([], 0.5 + 1 + 0.25 + 0.1),  # an empty batch is a batch of decodes
        (decodes(3), 0.5 + 1 + 0.25 + 0.1),
        ([Active(100, 0, 100)], 0.5 + 1 + 0.25 + 0.3),  # a feature at the threshold goes left
        ([Active(101, 0, 101)], 0.5 + 2 + 0.25 + 0.3),
        ([*decodes(2), Active(200, 0, 200)], 0.5 + 2 + 0.25 + 0.2),
        ([*decodes(3), Active(200, 0, 200)], 0.5 + 4 + 0.25 + 0.2),
    ],
)
def test_the_value_is_exp_of_baseline_leaves_and_the_correction_of_the_phase(
    batch: list[Active], sum_of_leaves: float
) -> None:
    assert step_us(PROGRAM, batch) == pytest.approx(SCALE * math.exp(sum_of_leaves), rel=1e-15)
    assert BatchFields(batch, FACTS, FOREST)["b", "trees"] == pytest.approx(math.exp(sum_of_leaves), rel=1e-15)


def test_opcodes_and_plain_interpreter_agree_on_random_ensembles() -> None:
    for seed in range(20):
        forest = random_forest(seed, EVERY, trees=1 + seed)
        program = parse(TREES_TEXT).with_forest(forest)
        code = assemble(program)
        bound, every = bind(code, program.theta, FACTS), Deployments({"a": FACTS, "b": FACTS}).bind(code, program.theta)
        for batch in batches(20, seed):
            rows = [Active(prompt, progress, new) for n, prompt, progress, new in batch if new > 0 for _ in range(n)]
            us = bound.step_us(raw_row(rows))
            assert us == pytest.approx(SCALE * BatchFields(rows, FACTS, forest)["b", "trees"], rel=1e-15)
            assert (every.steps_us(raw_row(rows)[np.newaxis]) == us).all()


def test_an_ensemble_without_contexts_is_remembered_and_one_with_them_is_not() -> None:
    """Also where the slopes of the features cancel in their sum, which alone says when the trees are walked."""
    limits = EngineLimits(max_seqs=128, budget=8192, threshold=0, block=16, blocks=1000)
    split = Tree((0, LEAF, LEAF), (500.0, 0.0, 0.0), (1, 0, 0), (2, 0, 0), (0.0, 7.0, 8.0))
    for texts, kind in (
        (("b.decode_reqs", "b.tokens"), WHOLE),
        (("b.kv_sum", "0 - b.kv_sum"), DIRECT),
        (("b.kv_sum", "0 - b.kv_decode_sum"), DIRECT),
        (("b.kv_sum - b.kv_decode_sum", "b.decode_reqs"), WHOLE),  # 0 in decodes, whatever their contexts
    ):
        program = parse(TREES_TEXT).with_forest(Forest(texts, (split,)))
        t = steps_of(bind(assemble(program), program.theta, FACTS), limits)
        for context in (100, 900):
            i = piece_for(t, t.longest, 0, 4, 0, 0, 0, context, context)
            assert t.pieces[i]["kind"] == kind, (texts, context)
            if kind == WHOLE:
                assert recall(t.pieces, i, context, context) == int(SCALE * math.exp(7.0))


def test_a_program_without_its_ensemble_is_a_line() -> None:
    bare = parse(TREES_TEXT)
    with pytest.raises(
        InputError, match=r"^b\.trees: the program reads an ensemble of trees and has none: give its file"
    ):
        assemble(bare)
    with pytest.raises(InputError, match="has none"):
        BatchFields([], FACTS)["b", "trees"]
    assert ("b", "trees") not in set(BatchFields([], FACTS))  # nor offered with the other fields


def test_what_makes_a_program_from_another_keeps_the_ensemble() -> None:
    assert features(PROGRAM) == ("b.trees",) and PROGRAM.reads_trees
    longer = parse(TREES_TEXT + "\ndef completion_time(s, *, c=0.0): return c").with_forest(FOREST)
    for changed in (
        PROGRAM.with_theta((2.0,)),
        complete(PROGRAM),
        brief(longer),
        lean(longer),
        replace(PROGRAM, doc="x"),
    ):
        assert changed.forest is FOREST
    assert blend([PROGRAM, PROGRAM.with_theta((3.0,))]).forest == FOREST
    other = replace(FOREST, baseline=0.75)
    with pytest.raises(InputError, match=r"^b\.trees: the programs read different ensembles of trees: leave"):
        blend([PROGRAM, PROGRAM.with_forest(other)])


def test_the_ensemble_is_part_of_what_identifies_a_program_that_reads_it() -> None:
    other = replace(FOREST, trees=(*FOREST.trees, ONLY_LEAF))
    assert key(PROGRAM) == key(PROGRAM.with_theta((7.0,))) != key(PROGRAM.with_forest(other))
    assert replace(FOREST) == FOREST and hash(FOREST) == hash(replace(FOREST)) != hash(other)
    linear = parse("def step_time(b, s, *, c=2.0): return c * b.tokens")
    assert key(linear) == key(linear.with_forest(FOREST))  # it has one and does not read it


def test_the_file_gives_back_the_ensemble(tmp_path: Path) -> None:
    for forest in (FOREST, random_forest(3, EVERY)):
        (tmp_path / "mine.trees.json").write_text(json.dumps(forest.to_json()))
        assert forest_file(tmp_path / "mine.py") == tmp_path / "mine.trees.json"
        assert read_forest(tmp_path / "mine.trees.json") == forest == forest_of(forest.to_json(), "here")
    assert with_forest(parse(TREES_TEXT), tmp_path / "mine.py").forest == forest
    linear = parse("def step_time(b, s, *, c=2.0): return c * b.tokens")
    assert with_forest(linear, tmp_path / "mine.py").forest is None


# key of the first tree and its damaged value (YAML) | where, and the problem
DAMAGED_TREE = """
left: [0, 0, 3, 0, 0] | left[0] must be a later node, from 1 to 4, got 0
right: [2, 0, 2, 0, 0] | right[2] must be a later node, from 3 to 4, got 2
right: [2, 0, 5, 0, 0] | right[2] must be a later node, from 3 to 4, got 5
left: [true, 0, 3, 0, 0] | left[0] must be a whole number from 0 to 30000, got true
feature: [2, -1, 1, -1, -1] | feature[0] must be a whole number from -1 to 1, got 2
feature: [] | feature is empty
value: [0, '1', 0, 2, 4] | value[1] must be a finite number, got '1'
value: [0, 1] | value has 2 entries, feature has 5
depth: 3 | depth is not a known key
"""
DAMAGED = """
trees: [] | trees must be a non-empty list, got []
trees: {feature: []} | trees must be a non-empty list
baseline: .nan | not valid JSON, NaN is no number
corrections: {decode: 0.1} | corrections.mixed is missing
features: [] | features are 0, from 1 to 100 are read
features: [b.tokens, b.token] | features[1]: feature:1: unknown field b.token: did you mean b.tokens?
features: [b.tokens, r.input_len] | features[1]: feature:1:
features: [b.tokens, s.reference_step_us] | features[1]: feature:1: s.reference_step_us is for queueing
features: [b.tokens, b.trees + 1] | features[1]: feature:1: b.trees cannot be read by its own ensemble
features: [b.tokens, x = 1] | features[1]: feature:1: 'x = 1' is not a formula
features: [b.tokens, open('x')] | features[1]: feature:1: cannot call 'open'
version: 1 | version is not a known key
"""


@pytest.mark.parametrize("line", [*DAMAGED_TREE.strip().splitlines(), *DAMAGED.strip().splitlines()])
def test_a_damaged_file_is_a_line(line: str, tmp_path: Path) -> None:
    change, message = line.split(" | ")
    of_tree = line in DAMAGED_TREE
    raw: JsonObject = json.loads(json.dumps(FOREST.to_json()))
    (raw["trees"][0] if of_tree else raw).update(yaml.safe_load(change))
    path = tmp_path / "mine.trees.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError) as caught:
        read_forest(path)
    assert str(caught.value).startswith(f"{path}: {'trees[0].' if of_tree else ''}{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"features": 1}', "\x00", "null"])
def test_a_file_that_is_no_ensemble_is_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.trees.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_forest(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_of_too_many_nodes_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.trees.json"
    path.write_text(json.dumps(replace(FOREST, trees=(STUMP,) * (MOST_NODES // 15)).to_json()))
    assert read_forest(path).nodes == MOST_NODES // 3
    count = MOST_NODES + 1
    flat = dict.fromkeys(("threshold", "left", "right", "value"), [0] * count) | {"feature": [LEAF] * count}
    path.write_text(json.dumps({**FOREST.to_json(), "trees": [flat]}))
    with pytest.raises(InputError, match=r"trees have 30,001 nodes, at most 30,000 are read: train smaller trees"):
        read_forest(path)


def test_whatever_is_cut_or_changed_in_a_file_it_is_read_or_it_is_a_line(tmp_path: Path) -> None:
    """And what is read can be walked: no cycle, no place outside."""
    path, rng = tmp_path / "mine.trees.json", Random(1)
    text = json.dumps(FOREST.to_json())
    read = 0
    for _ in range(400):
        at, to = rng.randrange(len(text)), rng.choice('0123456789-.,[]{}e"')
        path.write_text(text[:at] if rng.random() < 0.1 else text[:at] + to + text[at + 1 :])
        try:
            forest = read_forest(path)
        except InputError as e:
            assert "\n" not in str(e)
            continue
        read += 1
        step_us(parse(TREES_TEXT).with_forest(forest), decodes(3))
    assert 20 < read < 380


def test_units_of_features_need_not_fit_but_their_formulas_must_be_of_the_language() -> None:
    forest = replace(FOREST, features=("b.tokens + b.kv_read_us", "b.decode_reqs if b.tokens > 3 else 0"))
    assert step_us(PROGRAM.with_forest(forest), decodes(3)) > 0
    with pytest.raises(ProgramError):
        assemble(PROGRAM.with_forest(replace(FOREST, features=("b.tokens", "__import__('os')"))))
