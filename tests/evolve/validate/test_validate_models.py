"""Validation of a run with language models: recorded forms without a call, or models asked in every fold."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_world
from leaks import leaks
from llm_runs import DATA, Ran, Recorder, asked, asked_in, entries, evolve, journal, of_kind, search
from llm_server import Server

from archive.proposal import Outcome, Proposal, Rejected
from evolve.run.data import chosen
from evolve.run.folder import open_run
from evolve.run.validations import RECORDED, SOURCES, calls
from evolve.search.proposer import forms_of
from evolve.validate.folds import Fold, folds_of

CONFIG = """
budget: 24
score: {physics: false}
search: {prune_above: 0, generations: 2, islands: 2, finalists: 1, start: [roofline], only_start: true}
llm: {summariser: openai/notes, notes_every: 1, backoff_s: 0.01, attempts: 2, max_usd: 100, programs: 2}
validate: {budget: 14}
"""
IDS = ("dense", "sparse")  # of DATA, each of its own model
FOLDS = ["--folds", "models", "--workers", 1, "--quiet"]
MODELS_AND_STAGES = ["--folds", "models,stages"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    (path / "data.yaml").write_text(DATA)
    (path / "tiny.yaml").write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(Recorder()) as running:
        yield running


@pytest.fixture(scope="module")
def source(folder: Path, server: Server) -> Path:
    args = search(server, folder / "tiny.yaml", "--proposer", "auto", "--quiet", "--seed", 1, "--out", "source")
    assert evolve(folder, *args).status == 0
    return folder / "source"


class Recording:
    def __init__(self, source: Path, server: Server, out: Path) -> None:
        self.run = Path(shutil.copytree(source, out / "recorded"))
        self.before = len(server.seen)
        self.table = out / "rows.csv"
        self.ran: Ran = evolve(out, "validate", self.run, *FOLDS, "--csv", self.table, key=None)
        self.after = len(server.seen)


@pytest.fixture(scope="module")
def recorded(source: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return Recording(source, server, tmp_path_factory.mktemp("recorded"))


def result(run: Path, name: str) -> Any:
    return json.loads((run / name).read_text())


def test_recorded_forms_are_validated_without_a_call_and_named(recorded: Recording) -> None:
    assert recorded.ran.status == 0, recorded.ran.err
    assert recorded.before == recorded.after > 0
    folds = sorted((recorded.run / "validate-recorded").iterdir())
    assert [fold.name for fold in folds] == ["models-llama-2-7b-hf", "models-mixtral-8x7b-v0.1"]
    for fold in folds:
        assert {line["kind"] for line in journal(fold)} == {"outcome"}
        assert not (fold / "ledger.csv").exists() and not (fold / "prompts").exists()
    # Their residuals would be too small for intervals: the forms have seen what is held out.
    assert not (recorded.run / "trust.json").exists() and not (recorded.run / "validate.json").exists()
    words = SOURCES[RECORDED]
    assert recorded.ran.out.count(f"; {words}, up to 24 candidates each") >= 2
    assert SOURCES["searched"] not in recorded.ran.out
    found = result(recorded.run, "validate-recorded.json")
    assert (found["forms"], found["forms_in_words"]) == ("recorded", words)
    assert found["form_chosen_with_hindsight"] is False and found["budget"] == 24
    rows = csv.DictReader(io.StringIO(recorded.table.read_text()))
    assert {row["forms"] for row in rows} == {"recorded"}
    (line,) = calls(recorded.run)
    assert line["forms"] == "recorded" and words in (recorded.run / "summary.md").read_text()


def numbers(text: str) -> list[str]:
    """Those of a program's text, without the digits of names."""
    return re.findall(r"(?<!\w)\d[\d.e-]*", text)


def test_every_fold_fits_the_recorded_forms_in_their_order(source: Path, recorded: Recording) -> None:
    proposed = [line for line in entries(source) if line.get("key") and line["island"] is not None]
    assert {line["operator"].startswith("llm:") for line in proposed} == {True, False}  # of both
    texts = {line["id"]: line["elite"]["text"] if "elite" in line else line["text"] for line in proposed}
    for fold in result(recorded.run, "validate-recorded.json")["folds"]:
        run = recorded.run / "validate-recorded" / fold["folder"]
        again = [line for line in entries(run) if line["island"] is not None]
        assert [(line["id"], line["operator"]) for line in again] == [(p["id"], p["operator"]) for p in proposed]
        (held,) = fold["held_out"]
        (fitted,) = set(IDS) - {held}
        scored = [line["elite"] for line in again if "elite" in line]
        assert len(scored) > 5
        assert all({row[0] for row in elite["rows"]} == {fitted} for elite in scored)
        # the constants are the fold's own
        assert sum(elite["text"] != texts[elite["id"]] for elite in scored) > len(scored) / 2
        [own] = [
            line["elite"]["text"] for line in entries(run) if "elite" in line and line["id"] == fold["champion"]["id"]
        ]
        assert numbers(own) == numbers(fold["champion"]["text"])  # its constants may have other names


def test_an_interrupted_fold_of_recorded_forms_goes_on(recorded: Recording, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded.run, tmp_path / "run"))
    fold = run / "validate-recorded" / "models-llama-2-7b-hf"
    before = (fold / "journal.jsonl").read_bytes()
    lines = before.splitlines(keepends=True)
    (fold / "journal.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:40])
    (fold / "report.json").unlink()
    assert evolve(tmp_path, "resume", fold, "--workers", 1, "--quiet", key=None).status == 0
    assert (fold / "journal.jsonl").read_bytes() == before
    (fold / "report.json").unlink()
    assert evolve(tmp_path, "validate", run, *FOLDS, key=None).status == 0
    assert (fold / "journal.jsonl").read_bytes() == before
    one, other = result(run, "validate-recorded.json"), result(recorded.run, "validate-recorded.json")
    assert (one.pop("call"), other.pop("call")) == (2, 1)
    assert one.pop("run") != other.pop("run") and one == other


def test_forms_of_leaves_out_what_was_not_fitted() -> None:
    kinds = (("seed:floor", "a"), ("llm:openai/a", "b"), ("add", ""), ("add", "c"), ("polish", ""))
    outcomes = []
    for number, (operator, key) in enumerate(kinds):
        proposal = Proposal(number, 0, f"text {number}", operator, (), call="1/propose/9", motivation="why", judges=3)
        outcomes.append(Outcome(proposal, Rejected("replay", "nothing completes"), key))
    found = forms_of(outcomes)
    assert [(p.id, p.text, p.operator) for p in found] == [(1, "text 1", "llm:openai/a"), (3, "text 3", "add")]
    assert {(p.call, p.motivation, p.judges) for p in found} == {("", "", 0)}


# models that are asked in every fold


class Asked:
    def __init__(self, server: Server, out: Path) -> None:
        (out / "data.yaml").write_text(tiny_world.DATA)
        (out / "tiny.yaml").write_text(CONFIG)
        self.run = out / "source"
        judge = ("--judge", "openai/judge")
        assert evolve(out, *search(server, out / "tiny.yaml", *judge, "--quiet", "--out", self.run)).status == 0
        before, self.args = len(server.seen), [*MODELS_AND_STAGES, "--ask-models", "--max-usd", 3, "--workers", 1]
        self.ran = evolve(out, "validate", self.run, *self.args, "--quiet")
        self.sent = [asked(request.messages) for request in server.seen[before:]]
        self.found = result(self.run, "validate.json") if self.ran.status == 0 else {}

    def folds(self) -> list[Fold]:
        config = open_run(self.run).config
        return folds_of(config, ("models", "stages"), 14, chosen(config.data)[0])[0]


@pytest.fixture(scope="module")
def asked_anew(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    made = Asked(server, tmp_path_factory.mktemp("asked"))
    assert made.ran.status == 0, made.ran.err
    return made


@pytest.mark.slow
def test_no_prompt_of_a_fold_leaks_what_it_holds_out(asked_anew: Asked) -> None:
    prompts, purposes = list[str](), set[str]()
    for fold in asked_anew.folds():
        run = asked_anew.run / "validate" / fold.folder
        of_fold = list(asked_in(run).values())
        assert len(of_fold) > 4
        assert not any(leaks(text, fold.held, fold.train(), fold.last_stage) for text in of_fold)
        prompts += of_fold
        purposes |= {line["call"].split("/")[1] for line in of_kind(run, "sent")}
    assert set(asked_anew.sent) == set(prompts)  # nothing was sent that is not in a fold's journal
    assert purposes == {"propose", "round-2", "round-3", "judge", "judge-2", "notes"}


PLANTED = "dense-chat/Dense_Code/meta-llama\\Llama-2-7b-hf/LLAMA 2 7B/330.2/0.3302 s/284,300 us"


@pytest.mark.slow
def test_the_search_for_leaks_finds_them(asked_anew: Asked) -> None:
    """In prompts of the run itself, which saw all experiments, and if something is planted in a fold's prompt."""
    fold, _, stages = asked_anew.folds()
    of_run = list(asked_in(asked_anew.run).values())
    # questions name runs by their deployment and workload, and models by their names
    assert "Llama-2-7b-hf" in {x for text in of_run for x in leaks(text, fold.held, fold.train())}
    clean = next(iter(asked_in(asked_anew.run / "validate" / fold.folder).values()))
    for planted in PLANTED.split("/"):
        assert leaks(f"{clean} ... {planted} ...".replace("\\", "/"), fold.held, fold.train()), planted
    for known in ("26.10001", "sparse-chat 697.7 mixtral-8x7b"):  # the second is fitted in this fold
        assert leaks(f"{clean} {known}", fold.held, fold.train()) == []
    of_stages = next(iter(asked_in(asked_anew.run / "validate" / stages.folder).values()))
    assert "Llama-2-7b-hf" in "".join(asked_in(asked_anew.run / "validate" / stages.folder).values())
    # of the last stage and of the whole run, which has it; the first stage's 321.4 may be known
    for figure, leak in (("334.6", ["334.6"]), ("697.7", ["697.7"]), ("321.4", [])):
        assert leaks(f"{of_stages} {figure}", stages.held, stages.train(), last_stage=True) == leak


@pytest.mark.slow
def test_asked_folds_are_validated_as_searched_in_the_fold(asked_anew: Asked) -> None:
    found = asked_anew.found
    assert found["forms"] == "searched" and found["budget"] == 14
    assert f"{SOURCES['searched']}, 14 candidates each" in asked_anew.ran.out
    assert SOURCES[RECORDED] not in asked_anew.ran.out
    assert (asked_anew.run / "trust.json").exists()
    for fold in found["folds"]:
        run = asked_anew.run / "validate" / fold["folder"]
        assert list(open_run(run).about.fitted) == fold["fitted"]
        assert any(line["operator"].startswith("llm:") for line in entries(run))


@pytest.mark.slow
def test_all_folds_share_one_budget_and_their_costs_add_up(asked_anew: Asked) -> None:
    costs = asked_anew.found["llm"]
    names = sorted(fold["folder"] for fold in asked_anew.found["folds"])
    assert [row["search"] for row in costs["searches"]] == names and len(names) == 3
    assert costs["limits"] == {"max_usd": 3.0, "max_calls": 0, "max_tokens": 0}
    for row in costs["searches"]:
        run = asked_anew.run / "validate" / row["search"]
        assert open_run(run).config.llm.max_usd == 1.0  # a third
        assert row["requests"] == len(of_kind(run, "sent"))
        assert row["usd"] == pytest.approx(sum(line["usd"] for line in of_kind(run, "answered"))) and row["usd"] > 0
    assert costs["requests"] == sum(row["requests"] for row in costs["searches"]) == len(asked_anew.sent)
    with (asked_anew.run / "validate" / "ledger.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == costs["requests"] and sum(float(row["usd"]) for row in rows) == pytest.approx(costs["usd"])
    assert "cost by search, of 3 USD for all of them together" in asked_anew.ran.out


@pytest.mark.slow
def test_a_fold_that_was_cut_off_pays_no_answer_twice(asked_anew: Asked, server: Server, tmp_path: Path) -> None:
    run = Path(shutil.copytree(asked_anew.run, tmp_path / "run"))
    fold = run / "validate" / asked_anew.found["folds"][0]["folder"]
    whole = (fold / "journal.jsonl").read_bytes().splitlines(keepends=True)
    answers = [i for i, line in enumerate(whole) if b'"kind":"answered"' in line]
    kept = whole[: answers[len(answers) // 2] + 1]
    lost = sum(b'"kind":"sent"' in line for line in whole) - sum(b'"kind":"answered"' in line for line in kept)
    (fold / "journal.jsonl").write_bytes(b"".join(kept) + b'{"kind":"torn')
    (fold / "report.json").unlink()
    before = len(server.seen)
    ran = evolve(tmp_path, "validate", run, *asked_anew.args, "--quiet")
    assert ran.status == 0, ran.err
    assert len(server.seen) - before == lost > 0
    other = result(run, "validate.json")
    one = {k: v for k, v in asked_anew.found.items() if k not in ("call", "run", "llm")}
    assert one == {k: v for k, v in other.items() if k not in ("call", "run", "llm")}
    assert calls(run)[-1]["searched_folds"] == 1


@pytest.mark.slow
def test_further_folds_need_a_budget_above_the_spent(asked_anew: Asked, server: Server, tmp_path: Path) -> None:
    run = Path(shutil.copytree(asked_anew.run, tmp_path / "run"))
    most, before = max(row["requests"] for row in asked_anew.found["llm"]["searches"]), len(server.seen)
    # two workloads more than the three folds that there are
    args = ["--folds", "workloads", "--ask-models", "--max-usd", 50, "--workers", 1, "--quiet", "--max-calls"]
    ran = evolve(tmp_path, "validate", run, *args, 5 * most - 1)
    assert (ran.status, len(server.seen)) == (2, before)
    assert ran.err.count("\n") == 1 and f"--max-calls {5 * most} or more" in ran.err
    ran = evolve(tmp_path, "validate", run, *args, 5 * most)
    assert ran.status == 0, ran.err
    costs = result(run, "validate.json")["llm"]
    assert len(costs["searches"]) == 5 and costs["requests"] <= 5 * most
    assert all(row["requests"] <= most for row in costs["searches"])


def test_wrong_options_are_refused(source: Path, tiny_run: Path) -> None:
    for args in ["--ask-models", "--hindsight"], ["--max-usd", 3]:
        ran = evolve(source.parent, "validate", source, *args, key=None)
        assert ran.status == 2 and ran.err.count("\n") == 1 and str(args[0]) in ran.err and "--ask-models" in ran.err
    ran = evolve(tiny_run.parent, "validate", tiny_run, "--ask-models", key=None)
    assert ran.status == 2 and "leave out --ask-models" in ran.err
