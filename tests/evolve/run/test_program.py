"""PROGRAM arguments: wrong ones are refused in one line with a remedy, and foreign records are ignored."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import commands
import pytest
import tiny_world
from commands import Capsys, evolve
from paths import ROOT

from archive.elite import SEED, example
from archive.proposal import MODEL
from evolve.run.folder import open_run
from evolve.run.program import load, seed_names, with_true_names, write_program
from evolve.run.trust import TRUST_FILE, trust_file, trust_of
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.simplify import without_dominated

SEEDS = ROOT / "seeds"


def refused(spec: object) -> str:
    with pytest.raises(InputError) as caught:
        load(str(spec))
    return str(caught.value)


def test_what_is_no_program_is_refused(tmp_path: Path, capsys: Capsys) -> None:
    assert refused(tmp_path) == refused(f"{tmp_path}:3")
    assert refused(tmp_path).startswith(f"{tmp_path}: is no run and no program: give a file, or RUN:ID")
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "jams-ours.py").touch()
    assert f"is a folder without a run: name one of the programs in {tmp_path}/programs" in refused(tmp_path)
    for end in ("9999", "0009:3", "mine:3"):
        assert refused(tmp_path / end).startswith(f"{tmp_path / end.split(':')[0]}: there is no such run: ")
    assert "cannot be read (No such file or directory): give a file, RUN:ID" in refused(tmp_path / "mine.py")
    err = commands.refused(capsys, "validate", "seeds/champion", "--folds", "hardware")
    assert "seeds/champion: is a shipped run" in err and "`evolve report champion --only accuracy`" in err


def test_the_record_of_another_program_is_ignored_with_a_caution(tmp_path: Path) -> None:
    shipped = load("champion")
    path = tmp_path / "mine.py"
    assert shipped.record is not None
    write_program(path, shipped.text, None, shipped.record)
    assert load(str(path)).record == shipped.record
    path.write_text("def step_time(b, s, *, each: us/request = 100.0): return each * b.decode_reqs\n", "utf-8")
    edited = load(str(path))
    assert edited.record is None
    assert f"{tmp_path / 'mine.json'} is the record of another program" in edited.cautions[0]
    # an older record, without the values of the constants, counts
    path.write_text(shipped.text.replace("gemm: one = 0.963349", "gemm: one = 0.97"))
    path.with_suffix(".json").write_text(json.dumps(replace(shipped.record, values=None).to_json()))
    assert load(str(path)).record == replace(shipped.record, values=None)


def test_the_record_of_hand_edited_constants_is_ignored_with_a_caution(tmp_path: Path, capsys: Capsys) -> None:
    """The form is the same, and with it the key; errors and intervals are those of other constants."""
    text = (SEEDS / "champion.py").read_text()
    path = tmp_path / "mine.py"
    path.with_suffix(".json").write_bytes((SEEDS / "champion.json").read_bytes())
    trust_file(path).write_bytes((SEEDS / "champion" / TRUST_FILE).read_bytes())
    path.write_text(text)
    assert (mine := load(str(path))).record == load("champion").record and trust_of(mine)
    path.write_text(text.replace("gemm", "matrices").replace("kernel_matrices", "kernel_gemm"))
    assert load(str(path)).record == load("champion").record, "the same constants with other names"
    declared = re.compile(r"    kernel_moe_quantized: one = [\d.]+,\n")
    path.write_text(declared.sub("", text).replace("kernel_moe_quantized * b.", "1.5 * b."))
    caution = load(str(path)).cautions[0]
    assert "changed by hand (step_time.kernel_moe_quantized, step_time.k1)" in caution, "a number in its place"
    path.write_text(re.sub(r"\b(gemm: one|is_blackwell: us) = [\d.]+", r"\1 = 1.9", text))
    edited = load(str(path))
    assert edited.record is None and trust_of(edited) is None
    said = (
        f"constants were changed by hand (step_time.gemm, queueing_time.is_blackwell), so nothing in {tmp_path / 'mine.json'} "
        "counts: fit the program, or give them back their values"
    )
    assert edited.cautions == (said,)
    seven = ["--id", "llama-2-7b-tp1-general"]
    fit = ["fit", *seven, "--only", "gemm", "--out", str(tmp_path / "new.py")]
    for args in (["show"], ["predict", *seven], ["emit", *seven, "--out", str(tmp_path / "go")], fit):
        assert evolve(args[0], path, *args[1:]) == 0
        assert said in " ".join("".join(capsys.readouterr()).split()), args
    guide = (tmp_path / "go" / "INTEGRATION.md").read_text()
    assert "in sample" not in guide and "changed by hand" in guide
    assert load(str(tmp_path / "new.py")).record, "a fit of it has a record of its own"


# A term changed from kv_decode_sum * moe_layers * is_moe; a local and a condition are no terms.
LYING = """
def step_time(b, s, *, kv_decode_sum_moe_layers_is_moe: us/token = 2.0, word: us = 5.0, base: us = 7.0, few: request = 9.0):
    tokens = base * s.is_fp8
    if b.batch_size > few: return tokens + word * s.tp
    return kv_decode_sum_moe_layers_is_moe * b.kv_decode_sum * s.sampling_sort + tokens
"""
NAMED = """\
def step_time(
    b, s, *,
    kv_decode_sum_sampling_sort: us/token = 2.0,
    tp: us = 5.0,
    is_fp8: us = 7.0,
    few: request = 9.0,
):
    tokens = is_fp8 * s.is_fp8
    if b.batch_size > few:
        return tokens + tp * s.tp
    return kv_decode_sum_sampling_sort * b.kv_decode_sum * s.sampling_sort + tokens
"""


def test_constants_are_shown_under_what_they_multiply() -> None:
    lying = example(text=LYING)
    named = with_true_names(lying)
    assert named.text == NAMED and named.score is lying.score
    assert named.program.theta == lying.program.theta
    assert key(complete(named.program)) == key(complete(lying.program))
    assert with_true_names(named) is named
    authored = NAMED.replace(" tp: ", " word: ").replace("tp *", "word *")  # words stay unless they name other fields
    for operator in (f"{SEED}mine", f"{MODEL}a/b"):
        assert with_true_names(example(text=LYING, operator=operator)).text == authored


def test_a_run_is_shown_fitted_and_emitted_under_the_same_names(tiny_run: Path, tmp_path: Path, capsys: Capsys) -> None:
    report = json.loads((tiny_run / "report.json").read_text())
    lying = [e for e in open_run(tiny_run).archive().members() if with_true_names(e) is not e]
    assert lying
    for elite in lying:
        source = load(f"{tiny_run}:{elite.id}")
        assert source.text == with_true_names(elite).text == (tiny_run / "programs" / f"{elite.id}.py").read_text()
    assert load(f"{tiny_run}:{report['champion']['id']}").text == report["champion"]["text"]
    name, data = source.name, ("--experiments", tiny_run.parent / "data.yaml")
    data[1].write_text(tiny_world.DATA)
    capsys.readouterr()
    assert evolve("show", name) == 0 and source.text in capsys.readouterr().out
    function = next(f for f in source.program.functions if f.constants)
    one = f"{function.name}.{function.constants[-1].name}"
    assert evolve("fit", name, *data, "--only", one, "--out", tmp_path / "fitted.py") == 0
    fitted = json.loads((tmp_path / "fitted.json").read_text())
    assert [of for of, constant in fitted["constants"].items() if not constant.get("held")] == [one]


def test_an_elite_is_shown_and_counted_without_an_argument_that_never_counts() -> None:
    text = "def step_time(b, s, *, base=1.0, kv_sum=2.0): return max(base + kv_sum * b.kv_sum, base)"
    elite = example(text=text, operations=3, constants=2, features=1)
    shown = with_true_names(elite)
    assert "max" not in shown.text and (shown.operations, shown.constants, shown.complexity) == (2, 2, 4)
    assert (shown.key, shown.score, elite.operations) == (elite.key, elite.score, 3)
    for outcome in open_run(ROOT / "seeds" / "recorded").outcomes():  # nothing recorded has one
        if outcome.elite:
            assert with_true_names(outcome.elite).complexity == outcome.elite.complexity


@pytest.mark.parametrize("name", seed_names())
def test_shipped_programs_have_no_argument_that_never_counts(name: str) -> None:
    program = load(name).program
    assert without_dominated(program) == program


def test_methods_that_change_no_latency_are_said_to(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def step_time(b, s, *, a: us = 9000.0): return a\n"
        "def queueing_time(r, s, *, q: us = 5.0): return q\n"
        "def scheduling_time(s, *, t: us = 700.0): return t\n"
    )
    why = "changes no latency, here or in the host: give what an admission or a preemption costs to step_time"
    assert load(str(path)).cautions == (f"scheduling_time {why}",)
    both = path.read_text() + "def preemption_time(s, *, t: us = 1.0): return t\n"
    path.write_text(both)
    assert load(str(path)).cautions[0].startswith("scheduling_time and preemption_time change no latency")
