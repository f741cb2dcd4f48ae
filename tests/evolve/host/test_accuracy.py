"""What goes with the Go on accuracy: the README's held-out figures for the champion, none where nothing was held out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_world
from commands import Capsys, evolve, printed, refused
from paths import ROOT

from evolve.host.deployments import host_deployments
from evolve.host.emit import IN_SAMPLE, NOTHING, TITLE, accuracy
from evolve.inspect.explain import explain
from evolve.run.program import load
from simulator.serving.bundled import load_experiments
from simulator.serving.known import measured_deployments

README_ROWS = {  # the README's words for a row, and those here
    "without each model on each GPU in each precision": "the model on that GPU in that precision",
    "in sample: the shipped champion": IN_SAMPLE,
}


def figures(line: str) -> list[str]:
    return re.split("  +", line.strip())[-4:]


def test_the_champions_figures_are_the_readmes() -> None:
    title, _, *lines = accuracy(load("champion"))
    assert title == TITLE and NOTHING not in lines
    assert lines[-2].startswith(
        "Fitted on: B200-SXM-180GB, H100-SXM-80GB, H200-SXM-141GB; TP 1, 2, 4, 8; models of 6.7 to 1,026.2 "
    )
    readme = (ROOT / "README.md").read_text().replace("**", "")
    for theirs, ours in README_ROWS.items():
        [row] = re.findall(rf"^\|[^|]*{re.escape(theirs)}[^|]*\|(.*)\|$", readme, re.MULTILINE)
        [line] = [line for line in lines if ours in line]
        assert figures(line) == [cell.strip() for cell in row.split("|")], theirs
    assert accuracy(load("floor")) == ()  # it was not fitted


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.yaml").write_text(tiny_world.DATA)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("start", ["floor", "champion"])
def test_a_fit_to_own_runs_says_that_nothing_was_held_out(start: str) -> None:
    """The champion's held-out errors are of another fit, and so not shown. Four runs of the tiny world are clean."""
    assert evolve("fit", start, "--experiments", "data.yaml", "--out", "mine.py") == 0
    record = load("mine.py").record
    assert record is not None
    title, _, line, last, *spans = accuracy(load("mine.py"))
    assert spans[0].startswith("Fitted on: H100-SXM-80GB; TP 1, 2; models of ")
    e2e = sum(abs(r.e2e or 0.0) for r in record.errors) / len(record.errors)
    assert (title, last) == (TITLE, NOTHING) and IN_SAMPLE in line
    assert figures(line)[:2] == [str(len(record.fitted)), f"{e2e:.1f}"]
    assert evolve("emit", "mine.py", "--model", "llama-2-7b", "--hardware", "H100", "--tp", 1, "--out", "go") == 0
    page, source = Path("go/INTEGRATION.md").read_text(), Path("go/fitted.go").read_text()
    assert f"    {TITLE}\n" in page and f"    {NOTHING}\n" in page
    assert f"// {TITLE}\n" in source and f"// {line.rstrip()}\n" in source


@pytest.mark.usefixtures("here")
def test_deployments_beyond_every_run_are_counted(capsys: Capsys) -> None:
    """The champion's runs span models of 6.7 to 1,026 billion parameters, 5.7 to 70.6 active, on one to eight GPUs."""
    known = measured_deployments()
    own = [d for d in known if d.hardware[:4] in ("B200", "H100", "H200") and d.facts["tp"] in (1, 2, 4, 8)]
    inside = [d for d in own if 6.7 < d.facts["model_params_b"] < 1030 and 5.6 < d.facts["active_params_b"] < 72]

    def emitted(*args: object) -> tuple[str, str]:
        """Warnings and guide."""
        assert evolve("emit", "champion", *args, "--out", "go") == 0
        texts = capsys.readouterr().err, Path("go/INTEGRATION.md").read_text()
        return " ".join(texts[0].split()), " ".join(texts[1].split())

    far = f"{len(known) - len(inside)} of the {len(known)} deployments are beyond the fitted runs, by GPU, TP degree"
    assert all(far in text for text in emitted("--host", "blis-4"))
    hosts = host_deployments(("H100-SXM-80GB", "A100-SXM-80GB"))  # some models no host tells
    told = f"of the {len(hosts)} deployments are beyond the fitted runs"
    assert told in emitted("--host-facts")[0]
    one = "--host", "blis-4", "--model", "llama-2-7b", "--hardware", "H100", "--tp", 1
    assert "beyond the fitted runs" not in emitted(*one)[0]
    err, guide = emitted("--deployment", "mixtral-8x22b,H100,16", "--deployment", "llama-2-7b,H100,1")
    text = "mixtral-8x22b/H100-SXM-80GB/tp16: beyond the fitted runs in TP degree"
    assert text in err and err.count("beyond the fitted runs") == 1 and text in guide


@pytest.mark.usefixtures("here")
def test_a_fit_replaces_no_program_that_it_did_not_write(capsys: Capsys, tiny_run: Path) -> None:
    by_hand = "def step_time(b, s, *, a=9.0): return a * b.kv_sum + 5000\n"
    Path("hand.py").write_text(by_hand)
    fit = "fit", "floor", "--experiments", "data.yaml", "--out"
    assert "hand.py: exists, and was not written by a fit" in refused(capsys, *fit, "hand.py")
    assert Path("hand.py").read_text() == by_hand and not Path("hand.json").exists()
    assert "is the folder of a run: give a file" in refused(capsys, *fit, tiny_run)
    for again in (False, True):  # its own file it replaces, and says so
        said = "Replaced: what an earlier fit, or blend, had written as mine.py."
        assert (said in printed(capsys, *fit, "mine.py")) == again
    written = Path("mine.py").read_text()
    number = re.search(r"= (\d[\d.]+)", written)
    assert number
    for changed in (f"{written}(", written.replace(number[1], "1.5", 1)):  # no program any more; a constant
        Path("mine.py").write_text(changed)
        assert "mine.py: was changed since a fit, or a blend, wrote it" in refused(capsys, *fit, "mine.py")
        assert Path("mine.py").read_text() == changed
    for name, said in (  # no fit had written the text at first
        ("mine.py", "Replaced: the text of mine.py that was fitted"),
        ("hand.py", "Replaced: the text of hand.py that was fitted"),
        ("hand.py", "Replaced: what an earlier fit, or blend, had written"),
    ):
        out = printed(capsys, "fit", name, "--experiments", "data.yaml", "--out", name)
        assert [line.startswith(said) for line in out.splitlines() if "Replaced" in line] == [True]


@pytest.mark.usefixtures("here")
def test_constants_of_an_earlier_fit_are_held_and_nothing_else_is(capsys: Capsys) -> None:
    """No run of the tiny world is quantized, so they say nothing of that kernel."""
    assert evolve("fit", "champion", "--experiments", "data.yaml", "--only", "step_time", "--out", "mine.py") == 0
    explained = explain(load("mine.py"), load_experiments(Path("data.yaml"))[:1])
    origins = {f"{c.method}.{c.name}": c.by for c in explained.provenance.constants}
    held = {by for name, by in origins.items() if not name.startswith("step_time.")}
    # those of the shipped runs, and those without one
    assert held == {"held, as an earlier fit left it", "held: not fitted"}
    assert origins["queueing_time.base_2"] == "held, as an earlier fit left it"
    assert origins["step_time.kernel_moe_quantized"] == "the fitted runs say nothing of it"
    shown = printed(capsys, "show", "mine.py", "-v")
    rows = [line for line in shown.splitlines() if line.startswith("queueing_time.")]
    assert rows and all(" held" in row for row in rows)
