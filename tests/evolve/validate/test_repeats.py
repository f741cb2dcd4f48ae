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
from commands import Capsys, as_json, evolve, printed, refused
from elites import elite
from tiny_world import run

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
    for name in ("journal.jsonl", "config.yaml", "baseline_errors.json"):
        assert (made / "seed-4" / name).read_bytes() == (one / name).read_bytes()
    assert sorted(p.name for p in made.glob("seed-*")) == ["seed-3", "seed-4"]


def test_the_report_sums_up_the_champions(made: Path, capsys: Capsys) -> None:
    report = as_json(capsys, "resume", made, "--quiet")
    assert report == report_of(made)
    assert {"engine", "data", "seeds"} <= set(report) and report["search_seeds"] == [3, 4]
    fields: Counter[str] = Counter()
    for row, seed in zip(report["repeats"], (3, 4), strict=True):
        of_seed = report_of(made / f"seed-{seed}")
        mean = of_seed["fitted_mean"]
        assert row["e2e"] == mean["e2e"]
        assert row["mean_error"] == pytest.approx((mean["e2e"] + 0.3 * mean["ttft"] + mean["itl"]) / 2.3)
        fields.update(features(parse(of_seed["champion"]["text"])))
    assert report["shared_fields"] == fields
    mean_errors = [row["mean_error"] for row in report["repeats"]]
    assert report["figures"]["mean_error"] == {**asdict(spread(mean_errors)), "best": min(mean_errors)}
    out = printed(capsys, "resume", made, "--quiet")
    used_up = f"the budget of {report['budget']} candidates is used up"
    assert [row["ended"] for row in report["repeats"]] == [used_up, used_up] and used_up in out
    for words in ("quartiles", "Fields in all 2 champions", "In sample", "hindsight"):
        assert words in out
    best = min(report["repeats"], key=lambda row: row["mean_error"])["champion"]
    assert best["text"].strip() in out and "Pilot" not in out


def test_an_interrupted_repeat_goes_on(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    journal = copy / "seed-4" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:3000])
    for name in ("report.json", "seed-4/report.json", "seed-4/baseline_errors.json"):
        (copy / name).unlink()
    assert evolve("resume", copy, "--workers", 1, "--quiet") == 0
    assert journal.read_bytes() == (made / "seed-4" / "journal.jsonl").read_bytes()
    assert report_of(copy)["figures"] == report_of(made)["figures"]


def test_a_folder_of_repeats_is_known_as_one(made: Path, tmp_path: Path, capsys: Capsys) -> None:
    """It is no run, and not replaced; its runs are listed and named."""
    assert "exists already" in refused(capsys, "run", "--repeats", 2, "--out", made)
    line = refused(capsys, "archive", made)
    assert "holds repeats" in line and str(min(made.glob("seed-*"))) in line
    runs = as_json(capsys, "list", "--runs", made.parent)["runs"]
    assert [Path(r["run"]).name for r in runs] == ["seed-3", "seed-4"]


@pytest.mark.parametrize(
    "wrong, place",
    [
        ({"seeds": []}, "seeds"),
        ({"seeds": ["3"]}, r"seeds\[0\]"),
        ({"pilot": 1}, "pilot"),
        ({"limits": {"max_usd": 1}}, "limits"),
        ({"limits": {"max_usd": "x", "max_calls": 1, "max_tokens": 1}}, "limits"),
    ],
)
def test_a_wrong_value_in_repeats_json_is_named(
    made: Path, wrong: dict[str, object], place: str, tmp_path: Path
) -> None:
    about = json.loads((made / "repeats.json").read_text()) | wrong
    (tmp_path / "repeats.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=rf"repeats\.json, {place}.*Restore it from a copy"):
        reopen(tmp_path)


BLACKBOX = {"e2e": None, "ttft": None, "itl": None}


@pytest.mark.parametrize(
    ("mean_errors", "blackbox", "escalate"),
    [
        ((1.0, 1.2, 1.4), 2.0, True),  # 0.8 below, quartiles 1.1 and 1.3: 0.2 apart
        ((1.0, 1.2, 1.4), 1.3, False),  # 0.1 below
        ((1.0, 1.2, 1.4), 1.1, False),  # above
        ((1.0, 1.2, 3.8), 2.5, False),  # 1.3 below, quartiles 1.1 and 2.5: 1.4 apart
    ],
)
def test_a_pilot_escalates_beyond_the_spread(mean_errors: tuple[float, ...], blackbox: float, escalate: bool) -> None:
    found = verdict(spread(mean_errors), {"mean_error": blackbox, **BLACKBOX}, None)
    assert found.escalate is escalate and found.best_seed is None
    assert ("escalate" if escalate else "stop") in found.text and f"{blackbox:.2f} % of blackbox" in found.text


@pytest.mark.parametrize(
    ("mean_error", "escalate", "words"),
    [(1.5, True, "are ahead of it"), (1.3, True, "are not ahead of it"), (1.1, False, "-> stop: ")],
)
def test_a_pilot_is_compared_with_its_best_seed(mean_error: float, escalate: bool, words: str) -> None:
    """The median of the repeats is 1.2, the quartiles 1.1 and 1.3 are 0.2 apart."""
    seed = elite(0, mean_error=mean_error, operator="seed:kernels")
    found = verdict(spread((1.0, 1.2, 1.4)), {"mean_error": 2.0, **BLACKBOX}, seed)
    assert found.escalate is escalate and found.best_seed == {"name": "kernels", "mean_error": mean_error}
    assert words in found.text


def test_a_pilot_is_repeats_of_one_population_with_a_verdict(tiny: Path, tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "p"
    args = "pilot", "--config", tiny, "--model", "mixtral-8x7b", "--generations", 1, "--repeats", 2
    out = printed(capsys, *args, "--workers", 1, "--quiet", "--out", path)
    found = re.search(r"Pilot, fitted on these 1 experiments: .* -> (escalate|stop)", out)
    data = tiny.parent / "data.yaml"
    following = {"escalate": f"run --experiments {data}", "stop": f"fit champion --experiments {data} --out mine.py"}
    assert found and f"Next:\n  evolve {following[found[1]]}\n" in out
    config = open_run(path / "seed-1").config
    assert (config.search.generations, config.search.islands, config.budget) == (1, 1, 8)
    report = report_of(path)
    rows = [r for r in report_of(path / "seed-0")["baselines"]["blackbox"] if r["experiment"] in report["fitted"]]
    assert report["pilot"]["blackbox"]["e2e"] == pytest.approx(sum(abs(r["e2e"]) for r in rows) / len(rows))
    assert report["pilot"]["text"] in printed(capsys, "resume", path, "--quiet")


def test_spread_is_median_and_quartiles() -> None:
    assert spread([4.0, 1.0, 2.0, 3.0, 5.0]) == Spread(3.0, 2.0, 4.0, [4.0, 1.0, 2.0, 3.0, 5.0])
    assert str(spread([1.0, 2.0, 3.0])) == "2.00 [1.50-2.50]" and str(spread([2.0])) == "2.00"
    assert spread([1.0, None]).median is None and str(spread([1.0, None])) == "-"


def test_a_run_leaves_a_page_about_itself(made: Path) -> None:
    run, report = made / "seed-3", report_of(made / "seed-3")
    page = (run / "summary.md").read_text()
    best = report["champion"]
    assert f"```python\n{best['text'].strip()}\n```" in page
    words = "**In sample**", "**chosen with hindsight**", "| seed of the search | 3 |", "12 candidates", "| blackbox |"
    for text in (*words, report["data"], open_run(run).about.started, f"evolve show {run}:{best['id']}"):
        assert text in page
    assert "Held-out" not in page
    for row in report["errors"]:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {row['experiment']} |")]
        assert ("| fitted |" in line) == (row["experiment"] in report["fitted"])


def test_the_page_counts_the_looks_at_held_out_errors(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made / "seed-3", tmp_path / "run"))
    (copy / "validate.jsonl").write_text('{"call": 1, "protocol": {}, "mean_abs_error_pct": {}}\n' * 2)
    assert evolve("resume", copy, "--workers", 1, "--quiet") == 0
    assert "Held-out errors were computed 2 times" in (copy / "summary.md").read_text()
