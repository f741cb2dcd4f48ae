"""Repeats of a search and the pilot's verdict; the page that a run leaves behind."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from elites import elite
from tiny_world import run

from evolve.cli import run_command
from evolve.run.folder import open_run
from evolve.validate.seeds import reopen, verdict
from evolve.validate.statistics import Spread, spread
from simulator.common.errors import InputError
from simulator.language.measure import features
from simulator.language.parse import parse


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished repeats, seeds 3 and 4. To be read only, but for what `resume` writes again."""
    path = tmp_path_factory.mktemp("repeats") / "r"
    return run(tiny, path, "--budget", 12, "--repeats", 2, "--seed", 3)


def report_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "report.json").read_text())


@pytest.mark.slow
def test_each_repeat_is_the_run_of_its_seed(tiny: Path, made: Path, tmp_path: Path) -> None:
    one = run(tiny, tmp_path / "one", "--budget", 12, "--seed", 4)
    assert (one / "run.json").exists()  # without --repeats: a run, no folder of runs
    for name in ("journal.jsonl", "config.yaml", "known.json"):
        assert (made / "seed-4" / name).read_bytes() == (one / name).read_bytes()
    assert sorted(p.name for p in made.glob("seed-*")) == ["seed-3", "seed-4"]


def test_the_report_sums_up_the_champions(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["resume", str(made), "--quiet", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == report_of(made)
    assert {"engine", "data", "seeds"} <= set(report) and report["search_seeds"] == [3, 4]
    runs = [report_of(made / f"seed-{seed}") for seed in (3, 4)]
    fields: Counter[str] = Counter()
    for row, of_seed in zip(report["repeats"], runs, strict=True):
        mean = of_seed["fitted_mean"]
        assert row["e2e"] == mean["e2e"]
        assert row["joint"] == pytest.approx((mean["e2e"] + mean["ttft"] + mean["itl"]) / 3)
        fields.update(features(parse(of_seed["champion"]["text"])))
    assert report["shared_fields"] == fields
    joints = [row["joint"] for row in report["repeats"]]
    assert report["figures"]["joint"] == {**asdict(spread(joints)), "best": min(joints)}
    assert run_command(["resume", str(made), "--quiet"]) == 0
    out = capsys.readouterr().out
    used_up = f"the budget of {report['budget']} candidates is used up"
    assert [row["ended"] for row in report["repeats"]] == [used_up, used_up]
    assert f"Ended: {used_up} (seed 3, 4)." in out and "they were fitted on, over arrival seeds 1, 2, 3." in " ".join(
        out.split()
    )
    for words in ("median", "quartiles", "Fields in all 2 champions", "Distinct forms", "In sample", "hindsight"):
        assert words in out
    best = min(report["repeats"], key=lambda row: row["joint"])["champion"]
    assert best["text"].strip() in out
    assert "Pilot" not in out


def test_an_interrupted_repeat_goes_on(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    journal = copy / "seed-4" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:3000])
    for path in (copy / "report.json", copy / "seed-4" / "report.json", copy / "seed-4" / "known.json"):
        path.unlink()
    assert run_command(["resume", str(copy), "--workers", "1", "--quiet"]) == 0
    assert journal.read_bytes() == (made / "seed-4" / "journal.jsonl").read_bytes()
    assert report_of(copy)["figures"] == report_of(made)["figures"]


def test_bad_folders_are_one_line(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--repeats", "2", "--out", str(made)]) == 2
    err = capsys.readouterr().err
    assert "exists already" in err and err.count("\n") == 1
    (tmp_path / "repeats.json").write_text("{}")
    with pytest.raises(InputError, match="is damaged"):
        reopen(tmp_path)


def test_a_command_on_one_run_says_which_runs_the_repeats_are(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["archive", str(made)]) == 2
    first = min(made.glob("seed-*"))
    assert capsys.readouterr().err == f"evolve: {made}: holds repeats: name one of these runs, such as {first}\n"


def test_list_names_the_runs_of_repeats(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["list", "--runs", str(made.parent), "--json"]) == 0
    assert [Path(r["run"]).name for r in json.loads(capsys.readouterr().out)["runs"]] == ["seed-3", "seed-4"]


@pytest.mark.parametrize(
    ("joints", "blackbox", "escalate"),
    [
        ((1.0, 1.2, 1.4), 2.0, True),  # 0.8 below, quartiles 1.1 and 1.3: 0.2 apart
        ((1.0, 1.2, 1.4), 1.3, False),  # 0.1 below
        ((1.0, 1.2, 1.4), 1.1, False),  # above
        ((1.0, 1.2, 3.8), 2.5, False),  # 1.3 below, quartiles 1.1 and 2.5: 1.4 apart
    ],
)
def test_a_pilot_escalates_by_more_than_the_spread(joints: tuple[float, ...], blackbox: float, escalate: bool) -> None:
    found = verdict(spread(joints), {"joint": blackbox, "e2e": None, "ttft": None, "itl": None}, None)
    assert found.escalate is escalate and found.best_seed is None
    assert ("escalate" if escalate else "stop") in found.text and f"{blackbox:.2f} % of blackbox" in found.text


@pytest.mark.parametrize(("joint", "ahead"), [(1.5, "are ahead of it"), (1.3, "are not ahead of it")])
def test_a_pilot_says_whether_it_is_ahead_of_the_programs_that_it_started_from(joint: float, ahead: str) -> None:
    """The median is 1.2, the quartiles 1.1 and 1.3 are 0.2 apart."""
    seed = elite(0, joint=joint, operator="seed:kernels")
    found = verdict(spread((1.0, 1.2, 1.4)), {"joint": 2.0, "e2e": None, "ttft": None, "itl": None}, seed)
    assert found.escalate and found.best_seed == {"name": "kernels", "joint": joint}
    assert found.text.endswith(f". The best seed, kernels, only fitted: {joint:.2f} %, the searches {ahead}")


def test_a_pilot_stops_where_a_program_that_was_only_fitted_is_better() -> None:
    seed = elite(0, joint=1.1, operator="seed:kernels")  # the median of the repeats is 1.2
    found = verdict(spread((1.0, 1.2, 1.4)), {"joint": 2.0, "e2e": None, "ttft": None, "itl": None}, seed)
    assert not found.escalate and "-> stop: a program that was only fitted is better" in found.text


def test_a_pilot_is_repeats_of_one_population_with_a_verdict(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p"
    args = ["pilot", "--config", str(tiny), "--model", "mixtral-8x7b", "--generations", "1", "--repeats", "2"]
    assert run_command([*args, "--workers", "1", "--quiet", "--out", str(path)]) == 0
    out = capsys.readouterr().out
    found = re.search(r"Pilot, fitted on these 1 experiments: .* -> (escalate|stop)", out)
    data = tiny.parent / "data.yaml"
    following = {"escalate": f"run --experiments {data}", "stop": f"fit champion --experiments {data} --out mine.py"}
    assert found and f"Next:\n  evolve {following[found[1]]}\n" in out
    config = open_run(path / "seed-1").config
    assert (config.search.generations, config.search.islands, config.budget) == (1, 1, 8)
    report = report_of(path)
    rows = [r for r in report_of(path / "seed-0")["known"]["blackbox"] if r["experiment"] in report["fitted"]]
    assert report["pilot"]["blackbox"]["e2e"] == pytest.approx(sum(abs(r["e2e"]) for r in rows) / len(rows))
    assert run_command(["resume", str(path), "--quiet"]) == 0
    assert report["pilot"]["text"] in capsys.readouterr().out


def test_spread_is_median_and_quartiles() -> None:
    assert spread([4.0, 1.0, 2.0, 3.0, 5.0]) == Spread(3.0, 2.0, 4.0, [4.0, 1.0, 2.0, 3.0, 5.0])
    assert str(spread([1.0, 2.0, 3.0])) == "2.00 [1.50-2.50]" and str(spread([2.0])) == "2.00"
    assert spread([1.0, None]).median is None and str(spread([1.0, None])) == "-"


def test_a_run_leaves_a_page_that_says_everything(made: Path) -> None:
    run, report = made / "seed-3", report_of(made / "seed-3")
    page = (run / "summary.md").read_text()
    best = report["champion"]
    assert f"```python\n{best['text'].strip()}\n```" in page
    for words in ("**In sample**", "**chosen with hindsight**", "| seed of the search | 3 |", "simplest program within",
                  report["data"], open_run(run).about.started, "12 candidates", f"evolve show {run}:{best['id']}",
                  "| blackbox |", "Bias of the mean E2E"):  # fmt: skip
        assert words in page
    assert "Held-out" not in page
    for row in report["errors"]:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {row['experiment']} |")]
        assert ("| fitted |" in line) == (row["experiment"] in report["fitted"])
    front = page.split("## Front")[1].split("## Going on")[0]
    assert front.count("\n| ") == 1 + 1 + min(len(report["front"]), 12)


def test_the_page_counts_the_looks_at_held_out_errors(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(made / "seed-3", copy)
    (copy / "validate.jsonl").write_text("{}\n{}\n")
    assert run_command(["resume", str(copy), "--workers", "1", "--quiet"]) == 0
    assert "Held-out errors were computed 2 times" in (copy / "summary.md").read_text()
