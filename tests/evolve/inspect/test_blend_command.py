"""`evolve fit --blend` as a user types it: which programs are averaged, what is printed and written, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import Capsys, as_json, evolve, flat, printed, refused
from paths import ROOT
from tiny_world import FITTED, copy

from archive.champion import contenders
from archive.elite import Elite
from evaluator.judge.gates import Gate
from evaluator.score import SCORE_SEEDS, error_rows, score_set, summarise
from evolve.inspect import check as checking
from evolve.inspect.blend import CAPS, blend_run, print_blend
from evolve.run.data import chosen
from evolve.run.folder import open_run
from evolve.run.program import load
from evolve.run.trust import trust_file
from evolve.run.use import saw
from simulator.clock.fields import Active, BatchFields
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.evaluate import evaluate
from simulator.language.measure import Caps
from simulator.language.parse import parse


def best(run: Path) -> list[Elite]:
    opened = open_run(run)
    elites, rule = contenders(opened.archive().members(), opened.config.score.rule)
    return sorted(elites, key=lambda e: (rule.selection_score(e), e.id))


def test_the_best_are_averaged_and_measured_as_reports_do(tiny_run: Path, capsys: Capsys) -> None:
    result = as_json(capsys, "fit", "--blend", tiny_run, "--top", 4)
    assert [m["id"] for m in result["members"]] == [e.id for e in best(tiny_run)[:4]]
    assert len({m["key"] for m in result["members"]}) == 4
    fitted, _ = chosen(open_run(tiny_run).config.data)
    fields = BatchFields([Active(300, 0, 300), Active(200, 220, 1)], fitted[0].facts)
    mixed = complete(parse(result["program"]))
    members = [complete(parse(e.text)) for e in best(tiny_run)[:4]]
    for method in ("step_time", "output_token_time", "completion_time"):
        times = [evaluate(p.function(method), fields) for p in members]  # type: ignore[arg-type]
        ours = evaluate(mixed.function(method), fields)  # type: ignore[arg-type]
        assert ours == pytest.approx(sum(times) / 4, rel=1e-9)
    score = summarise(error_rows(mixed, score_set(fitted, SCORE_SEEDS)))
    assert result["in_sample"]["mean_error"] == score.mean_error and result["seeds"] == list(SCORE_SEEDS)
    assert [r["experiment"] for r in result["errors"]] == list(FITTED)
    assert result["ok"] and all(g["passes"] for g in result["gates"]) and result["out"] is None
    assert result["champion"]["id"] == json.loads((tiny_run / "report.json").read_text())["champion"]["id"]


def test_the_file_works_in_other_commands(tiny_run: Path, tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "mixed.py"
    assert evolve("fit", "--blend", tiny_run, "--top", 3, "--out", out) == 0
    text = capsys.readouterr().out
    data = open_run(tiny_run).config.data
    own = f"--experiments {data.files[0]}"
    assert f"Written: {out}, with its record next to it." in text and f"  evolve predict {out} {own}" in text
    more = ("--max-operations", 100, "--max-constants", 50)  # each program keeps its own floor under the host's time
    assert f"  evolve emit {out} --out go {own} --id {FITTED[0]}" in text
    for command in ("show", "check", "predict"):
        assert evolve(command, out, *more) == 0
    assert evolve("emit", out, "--out", tmp_path / "go", *more) == 0
    assert evolve("fit", out, "--experiments", data.files[0], "--out", tmp_path / "again.py", *more) == 0
    source = load(str(out), Caps(100, 0, 50))
    record = source.record
    assert record is not None and record.fitted == FITTED and record.fitted_from == str(tiny_run)
    fitted, others = chosen(data)
    assert all(saw(record, e) for e in fitted) and not any(saw(record, e) for e in others)
    rows = error_rows(source.complete, score_set(fitted, SCORE_SEEDS))
    assert list(record.errors) == rows


def test_a_blend_says_that_it_replaces_a_fit(tiny_run: Path, tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "mine.py"
    assert evolve("fit", "champion", "--id", "llama-2-7b-tp1-codegen", "--out", out) == 0
    assert trust_file(out).exists()
    for path in tmp_path / "new.py", out:
        text = printed(capsys, "fit", "--blend", tiny_run, "--top", 3, "--out", path)
        assert (f"Replaced: what an earlier fit, or blend, had written as {out}." in text) == (path == out)
    assert not trust_file(out).exists()


@pytest.mark.slow
def test_the_committee_is_averaged_and_the_caps_that_its_mean_needs_are_named(tmp_path: Path, capsys: Capsys) -> None:
    out, shipped = tmp_path / "mixed.py", ROOT / "seeds" / "champion"
    with pytest.raises(InputError, match="average the best 3 with --top 3, or give --max-operations") as refusal:
        blend_run(open_run(shipped), None, CAPS, out)
    operations, constants = map(int, re.findall(r"--max-\w+ (\d+)", str(refusal.value)))
    whole = blend_run(open_run(shipped), None, Caps(operations, CAPS.conditionals, constants), out).to_json()
    blended = blend_run(open_run(shipped), 3, CAPS, out)
    print_blend(blended)
    text, result = capsys.readouterr().out, blended.to_json()
    options = result["options"]
    assert options == ["--max-operations", str(result["operations"]), "--max-constants", str(len(result["constants"]))]
    assert f"every command that reads it needs {' '.join(options)}." in " ".join(text.split())
    assert "raise --max-operations" in refused(capsys, "show", out)
    assert evolve("predict", out, "--id", "llama-2-7b-tp1-codegen", *options) == 0
    texts = {e.text for e in open_run(shipped).archive().members() if e.id in {m["id"] for m in whole["members"]}}
    assert set(json.loads((shipped / "trust.json").read_text())["ensemble"]) <= texts
    mean_errors = [m["in_sample"]["mean_error"] for m in whole["members"]]
    assert min(mean_errors) < whole["in_sample"]["mean_error"] < sum(mean_errors) / len(mean_errors)


def test_what_cannot_be_averaged_is_said_in_a_line(tiny_run: Path, tmp_path: Path, capsys: Capsys) -> None:
    def told(run: Path, *args: object) -> str:
        return refused(capsys, "fit", "--blend", run, *args)

    count = len(best(tiny_run))
    assert f"--top 99: {tiny_run} has {count} programs to choose from" in told(tiny_run, "--top", 99)
    small = "--max-operations", 5, "--max-constants", 2
    caps = told(tiny_run, "--top", 3, *small)
    assert f"{tiny_run}: the mean of 3 programs has " in caps and "operations (at most 5 are allowed), " in caps
    assert ": average fewer with --top, or give --max-operations " in caps and " --max-constants " in caps
    two = told(tiny_run, "--top", 2, *small)
    options = [word for option in re.findall(r"--max-\w+ \d+", two) for word in option.split()]
    assert ": average the best 2 with --top 2, or give --max-" in told(tiny_run, "--top", 3, *options)
    assert evolve("fit", "--blend", tiny_run, "--top", 2, *options) == 0
    assert "is not a run" in told(tmp_path)
    assert "a program's file ends in .py" in told(tiny_run, "--top", 3, "--out", tmp_path / "mixed.txt")
    other = copy(tiny_run, tmp_path)
    about = json.loads((other / "run.json").read_text()) | {"data": "0123"}
    (other / "run.json").write_text(json.dumps(about))
    assert "made on data 0123, these are " in told(other, "--top", 3)
    (other / "run.json").write_text((tiny_run / "run.json").read_text())
    assert "its ensemble is one program, which needs no average: give --top" in told(other)
    (other / "journal.jsonl").write_text("")
    assert "no candidate could be scored: `evolve resume" in told(other)


def test_nothing_is_written_if_a_gate_refuses(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(checking, "judge", lambda *_: [Gate("finite", False, "", "a step of -1 us: lower a constant")])
    args = "fit", "--blend", tiny_run, "--top", 3, "--out", tmp_path / "mixed.py"
    text = flat(capsys, *args, status=1)
    for words in ("refused: finite", "- finite: a step of -1 us", "Not written: a gate refuses it"):
        assert words in text
    result = as_json(capsys, *args, status=1)
    assert not result["ok"] and result["out"] is None and list(tmp_path.iterdir()) == []
