"""A research loop: gates before a fit, a folder for each idea whose commands repeat its figures, replays and kills."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from llm_replies import Reply, Request, said
from llm_runs import DATA, Ran, entries, evolve, ledger, search
from llm_server import Server

from archive.proposal import DUPLICATE, GATE
from evolve.search.llm.panel import RUBRIC
from evolve.summary.research import FILE
from simulator.language.complete import complete
from simulator.language.measure import features
from simulator.language.parse import parse
from simulator.serving.bundled import load_experiments

IDEAS = 4
CONFIG = """
budget: 100
score: {physics: false}
search: {prune_above: 0, finalists: 1, start: [roofline], only_start: true}
llm: {summariser: openai/notes, backoff_s: 0.01}
"""
STEP = "def step_time(b, s, *, peak: flop/us = 4e8, bandwidth: byte/us = 3e6, o: us = 4000.0{}):\n    return {}\n"
ROOF = "max(b.total_flops / peak, b.total_bytes / bandwidth) + o"
FORMS = {
    "layer": STEP.format(", layer: us = 20.0", f"{ROOF} + layer * s.layers"),
    "token": STEP.format(", token: us/token = 1.0", f"{ROOF} + token * b.tokens"),
    "request": STEP.format(", request: us/request = 20.0", f"{ROOF} + request * b.decode_reqs"),
    "rank": STEP.format(", rank: us = 100.0", f"{ROOF} + rank * s.tp"),
    "same": STEP.format("", ROOF),
}
# What the creator answers, in turn: a form, and whether its hypothesis names what the form changes.
ANSWERS = (
    *(("layer", False), ("layer", True)),  # sent back, then fitted
    *(("same", True), ("token", True)),  # a duplicate, then what the judge does not believe
    ("request", True),
    ("rank", False),  # sent back, and nothing better after it
    ("rank", False),
)


def proposed(question: str, form: str, honest: bool) -> str:
    base = re.split(r"```python\n", question, maxsplit=1)[1].split("```")[0]
    changed = set(features(complete(parse(base)))) ^ set(features(complete(parse(FORMS[form]))))
    names = ", ".join(sorted(changed)) if honest else "the cost of launches"
    return (
        f"### Proposal 1: {form}s cost time\n\nHypothesis: A leaves out {names}.\nExpect: all runs.\n"
        f"Related work: [kwon2023]\n\n```python\n{FORMS[form]}```\n"
    )


class Loop(NamedTuple):
    """A finished loop: its run, how it ended, the questions to its creator, what the server was paid for, and the server."""

    run: Path
    ran: Ran
    questions: list[str]
    paid: int
    server: Server


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    folder = tmp_path_factory.mktemp("ideas")
    (folder / "data.yaml").write_text(DATA)
    (folder / "loop.yaml").write_text(CONFIG)
    questions, known, failed, faults = list[str](), dict[str, str](), dict[str, bool](), list[bool]()

    def answer(request: Request) -> str:
        asked = request.messages[-1]["content"]
        if request.model == "notes":
            return "Go on."
        if request.model == "a":
            questions.append(request.messages[1]["content"])
            return proposed(questions[-1], *ANSWERS[len(questions) - 1])
        if "You guard the door" in asked:
            fine = "# The idea: tokens" not in asked
            return json.dumps({"does": fine, "contradicts": None, "why": "tokens are no launches"})
        marks = dict.fromkeys(RUBRIC, 6)
        return json.dumps([{"candidate": 1, **marks, "remark": f"objection {len(questions)}"}])

    def script(request: Request) -> Reply:
        asked = json.dumps([request.model, request.messages])  # the same question has the same answer
        if faults and not failed.get(asked):
            failed[asked] = True
            return Reply(lambda request: "down", code=503)
        if asked not in known:
            known[asked] = answer(request)
        return said(known[asked])

    def searched(server: Server, name: str) -> Ran:
        args = search(server, folder / "loop.yaml", "--ideas", IDEAS, "--quiet", "--out", folder / name, models=["a"])
        return evolve(folder, *[x for x in args if x not in ("--proposer", "llm")], "--judge", "openai/judge")

    with Server(script) as server:
        ran, paid = searched(server, "run"), server.answered
        faults.append(True)  # from now on each question fails once
        assert searched(server, "faulty").status == 0
        faults.clear()
        yield Loop(folder / "run", ran, questions, paid, server)


def files(run: Path) -> dict[str, bytes]:
    """What is written about ideas."""
    paths = [run / FILE, *(path for path in (run / "ideas").rglob("*") if path.is_file())]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


def about(loop: Loop, number: int, name: str) -> str:
    return next((loop.run / "ideas").glob(f"{number:03d}-*"), loop.run).joinpath(name).read_text()


def of_models(run: Path) -> list[dict[str, object]]:
    return [entry for entry in entries(run) if entry.get("call")]


def test_what_fails_a_gate_is_sent_back_once_and_not_fitted(loop: Loop) -> None:
    assert (loop.ran.status, loop.ran.err) == (0, "")
    became = [entry.get("stage", "scored") for entry in of_models(loop.run)]
    assert became == [GATE, "scored", DUPLICATE, GATE, "scored", GATE, GATE]
    assert len(loop.questions) == len(ANSWERS)
    assert [bool(entry.get("key")) for entry in of_models(loop.run)] == [stage == "scored" for stage in became]
    # roofline, and the two ideas that passed; what is dropped or polished at the end does not count
    assert sum(bool(entry.get("key")) and entry["operator"] != "trim" for entry in entries(loop.run)) == 3
    why = [str(entry.get("why", "")) for entry in of_models(loop.run)]
    assert "newly reads s.layers" in why[0] and "tokens are no launches" in why[3]


def test_every_request_is_in_the_ledger(loop: Loop) -> None:
    assert len(ledger(loop.run)) == loop.paid


def test_a_folder_has_hypothesis_program_and_findings(loop: Loop) -> None:
    folders = sorted((loop.run / "ideas").iterdir())
    assert len(folders) == IDEAS
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [
        ["FINDINGS.md", "HYPOTHESIS.md", "program.py"]
    ] * IDEAS
    hypothesis = about(loop, 2, "HYPOTHESIS.md")
    assert "## Sent back before a fit" in hypothesis and "`step_time: s.layers`" in hypothesis
    assert "unchecked" in hypothesis  # no library was given
    assert "layer * s.layers" in about(loop, 2, "program.py")  # as proposed, whatever the fit drops
    assert "Conclusion.** Refused at gate" in about(loop, 5, "FINDINGS.md")


def test_the_command_in_a_folder_repeats_its_figures(loop: Loop) -> None:
    findings = about(loop, 2, "FINDINGS.md")
    line = next(line for line in findings.splitlines() if line.startswith("evolve show "))
    ran = evolve(loop.run, *shlex.split(line)[1:], key=None)
    assert ran.status == 0, ran.err
    row = next(line for line in findings.splitlines() if line.startswith("| idea 2 |"))
    figures = [cell.strip() for cell in row.split("|")[2:-1]]
    assert len(figures) == 8 and all(figure in ran.out.split() for figure in figures)
    compared = re.search(r"\| 2: .*? (-[\d.]+ \(.*?\)) \|", (loop.run / FILE).read_text())
    assert compared and compared[1] in " ".join(ran.out.split())


def test_the_document_has_a_table_best_first(loop: Loop) -> None:
    document = (loop.run / FILE).read_text()
    assert document.count("\n") <= 300
    rows = [line.split("|")[1:-1] for line in document.splitlines() if re.match(r"\| \d+: ", line)]
    assert len(rows) == len(ANSWERS)
    errors = [float(row[2]) for row in rows if row[2].strip() != "-"]
    assert errors == sorted(errors) and len(errors) == 2
    assert "To beat: seed `roofline-2`" in document and "4 sent back" in document
    assert document.count("## Recommendation") == 1


def test_the_next_creator_is_told_findings_and_issues(loop: Loop) -> None:
    first, last = loop.questions[0], loop.questions[-1]
    assert "# One idea" in first and "None yet." in first.split("# One idea")[1]
    # the last reviewed idea is the third, the fifth answer
    assert "objection 5" in last and "Answer every issue" in last


def test_faults_of_the_server_change_no_folder_and_are_in_the_ledger(loop: Loop) -> None:
    run = loop.run.parent / "faulty"
    outcomes = [row["outcome"] for row in ledger(run)]
    assert outcomes.count("answered") == loop.paid and outcomes.count("server error") == loop.paid
    assert files(run) == files(loop.run)


def test_a_replay_writes_the_same_folders(loop: Loop) -> None:
    again = loop.run.parent / "again"
    args = ("run", "--replay", loop.run, "--out", again, "--workers", 1, "--quiet")
    assert evolve(loop.run.parent, *args, key=None).status == 0
    assert files(again) == files(loop.run)


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_after_a_kill_nothing_is_paid_twice(loop: Loop, kept: int, tmp_path: Path) -> None:
    """Killed while it wrote the outcome of an idea: its folders may be behind, or gone."""
    run = tmp_path / "run"
    shutil.copytree(loop.run, run)
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if b'"verdict"' in line and b'"call"' in line][kept]
    later = sum(b'"kind":"answered"' in line.replace(b'": "', b'":"') for line in lines[at:])
    (run / "journal.jsonl").write_bytes(b"".join(lines[:at]) + lines[at][:20])
    shutil.rmtree(run / "programs")
    shutil.rmtree(run / "ideas")
    (run / "report.json").unlink()
    before = loop.server.answered
    assert evolve(run.parent, "resume", run, "--workers", 1, "--quiet").status == 0
    assert loop.server.answered - before == later and len(ledger(run)) == len(ledger(loop.run))
    assert files(run) == files(loop.run)


def test_ideas_need_a_model_and_no_other_proposer(loop: Loop, tmp_path: Path) -> None:
    for more, why in (((), "without a language model"), (("--proposer", "auto"), "by language models alone")):
        ran = evolve(tmp_path, "run", "--ideas", 2, *more, key=None)
        assert ran.status == 2 and why in ran.err


MODELS = ("llama-2-7b", "codellama-34b", "llama-3.1-8b", "mistral-nemo-12b", "qwen2.5-7b", "mixtral-8x7b")


def test_no_question_shows_a_hidden_cell(tmp_path: Path) -> None:
    """Two of six, by lot: no question to the creator or the judge names their models."""
    runs = [
        f"- {{id: r{i}, model: {model}, hardware: H100, engine: {{tensor_parallel: 2}}, workload: {{name: chat, stages: "
        f"[{{rate: 4.0, duration_s: 20}}], prompt_len: 300, output_len: 50}}, observed: {{summary: {{e2e_ms: "
        f"{{mean: {400 + 40 * i}.0}}, ttft_ms: {{mean: {20 + i}.0}}}}}}}}"
        for i, model in enumerate(MODELS)
    ]
    (tmp_path / "data.yaml").write_text("\n".join(["version: 1", "experiments:", *runs]))
    (tmp_path / "loop.yaml").write_text(CONFIG)
    asked = list[str]()

    def script(request: Request) -> Reply:
        text = json.dumps(request.messages)
        asked.append(text)
        if request.model != "a":
            marks = dict.fromkeys(RUBRIC, 6)
            return said(json.dumps([{"candidate": 1, **marks, "remark": "fine"}] if "candidate" in text else {}))
        return said(proposed(request.messages[1]["content"], "layer", honest=True))

    with Server(script) as server:
        args = search(server, tmp_path / "loop.yaml", "--ideas", 1, "--quiet", "--out", tmp_path / "run", models=["a"])
        ran = evolve(tmp_path, *[x for x in args if x not in ("--proposer", "llm")], "--judge", "openai/judge")
    assert ran.status == 0, ran.err
    found = re.search(r"Hidden from all questions: (.*?)\. An idea", (tmp_path / "run" / FILE).read_text())
    assert found
    hidden = [name.split()[0] for name in found[1].split(", ")]
    shown = {e.model.rsplit("/", 1)[-1] for e in load_experiments(tmp_path / "data.yaml")} - set(hidden)
    assert len(hidden) == 2 and len(shown) == 4 and len(asked) >= 3
    assert all(name in asked[0] for name in shown)
    assert not any(name in text for name in hidden for text in asked)
    assert "(hidden)" in next((tmp_path / "run" / "ideas").glob("*/FINDINGS.md")).read_text()
