"""`evolve plot`: what is drawn is what the run and the program say, and every text is drawn as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import commands
import matplotlib
import numpy as np
import pytest
import tiny_world
from commands import evolve
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from paths import ROOT

from evolve.cli.options import named_experiments
from evolve.draw.plot import fit, front, grid, history, pictures, style, terms
from evolve.inspect.step_shares import CONTEXT, StepShares
from evolve.plan.predict import predict
from evolve.run.data import chosen
from evolve.run.program import load
from evolve.summary.result import read_report
from evolve.summary.searched import Searched, searched
from simulator.common.errors import InputError
from simulator.common.text import visible

MAGIC = {"svg": b"<?xml", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}
KINDS = ("front", "history", "grid", "fit", "terms")
HOSTILE = "$x^2$ <b>&amp; \\frac \x1b[31m\u202eb"
# A step of n decodes takes 5 ms, 0.1 ms for each, and 1 us for each token in the KV cache.
BY_HAND = """
def step_time(b, s, *, base: us = 5000.0, each: us/request = 100.0, kv: us/token = 1.0):
    return base + each * b.decode_reqs + kv * b.kv_decode_sum
"""


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """What `evolve plot ARGS` says of bad input."""
    return commands.refused(capsys, "plot", *args).removeprefix("evolve: ").rstrip("\n")


@pytest.fixture(scope="module")
def found(tiny_run: Path) -> Searched:
    return searched(tiny_run)


def entries(figure: Figure) -> list[str]:
    """What the legend names."""
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def texts(svg: Path) -> list[str]:
    """The texts in an SVG, as a reader shows them."""
    return [e.text or "" for e in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]


def clouds(axes: Axes) -> list[np.ndarray]:
    """The places of the points in each collection of points."""
    return [np.asarray(c.get_offsets()) for c in axes.collections if isinstance(c, PathCollection)]


def line_of(axes: Axes, colour: str) -> np.ndarray:
    """The corners of the widest line of this colour."""
    lines = [line for line in axes.lines if to_hex(line.get_color()) == colour]
    return max(lines, key=lambda line: line.get_linewidth()).get_xydata()


def test_a_history_is_that_of_the_report_at_the_end_of_every_generation(found: Searched) -> None:
    report = read_report(found.run.path / "report.json")
    course = history.course_of(found)
    assert len(course.generations) == len(report.best)  # the seed programs are the first
    at = [
        max((b for b in course.best if b.candidates <= end), key=lambda b: b.candidates) for end in course.generations
    ]
    assert [(b.mean_error, b.group_out) for b in at] == [tuple(pair) for pair in report.best]
    assert course.best[-1].candidates == course.generations[-1] == report.candidates


def test_a_history_shows_each_measure_and_every_candidate(found: Searched) -> None:
    [axes, *_] = history.draw([found]).axes
    lines = tiny_world.lines(found.run.path)
    fitted = np.cumsum([bool(line.get("key")) for line in lines])
    scored = [(n, line["elite"]["mean_error"]) for n, line in zip(fitted, lines, strict=True) if "elite" in line]
    [cloud] = clouds(axes)
    assert cloud.tolist() == [list(point) for point in scored]
    ends = {name: line_of(axes, colour)[-1] for name, (_, colour) in history.MEASURES.items()}
    best = history.course_of(found).best[-1]
    assert {name: y for name, (_, y) in ends.items()} == {
        "mean_error": best.mean_error,
        "group_out": best.group_out,
    }
    assert {x for x, _ in ends.values()} == {30}  # the budget
    assert axes.get_xlabel() == "fitted candidates" and axes.get_ylabel() == "percent"
    assert entries(axes.get_figure()) == ["mean error of a candidate"]


def test_generations_that_are_not_known_have_no_axis(found: Searched) -> None:
    """A journal whose numbers are not those of a search, as of a rival engine."""
    odd = [replace(o, proposal=replace(o.proposal, island=0)) for o in found.outcomes]
    course = history.course_of(replace(found, outcomes=odd))
    assert not course.generations and course.best[-1].candidates == 30
    history.draw([replace(found, outcomes=odd)])


def test_of_many_candidates_some_are_drawn_and_the_legend_says_how_many(
    found: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_POINTS", 10)
    figure = history.draw([found])
    scored = sum(outcome.elite is not None for outcome in found.outcomes)
    every = -(-scored // 10)
    assert entries(figure) == [f"mean error of a candidate, 1 in {every} drawn"]
    assert len(clouds(figure.axes[0])[0]) == -(-scored // every) <= 10


def test_quartiles_are_those_of_the_steps() -> None:
    """Three runs: 8 then 4 from 10 on; 6 all along; from 5 on 2."""
    curves = [
        (np.array([0, 10]), np.array([8.0, 4.0])),
        (np.array([0, 20]), np.array([6.0, 6.0])),
        (np.array([5]), np.array([2.0])),
    ]
    places, (low, median, high) = history.quartiles(curves)
    assert places.tolist() == [5, 10, 20]
    assert median.tolist() == [6.0, 4.0, 4.0]
    assert low.tolist() == [4.0, 3.0, 3.0] and high.tolist() == [7.0, 5.0, 5.0]  # between neighbours, linearly


def test_two_runs_are_two_named_lines_and_three_have_a_median_and_quartiles(found: Searched) -> None:
    two, three = history.draw([found] * 2), history.draw([found] * 3)
    assert entries(two) == [style.label(found.name)] * 2
    assert all(len(axes.lines) == 2 and not axes.collections for axes in two.axes)
    assert entries(three) == ["a run", "median", "quartiles"]
    for axes, (title, colour) in zip(three.axes, history.MEASURES.values(), strict=True):
        assert axes.get_title("left") == f"{title} of the champion"
        assert len(axes.lines) == 4 and len(axes.collections) == 1
        # of three equal runs, the median is each of them
        assert line_of(axes, colour).tolist() == axes.lines[0].get_xydata().tolist()


def test_a_front_is_that_of_the_archive(found: Searched, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert evolve("archive", found.name, "--json") == 0
    archive = json.loads(capsys.readouterr().out)
    figure = front.draw(found)
    axes = figure.axes[0]

    def places(elites: list[dict[str, float]]) -> list[list[float]]:
        return [[e["operations"] + e["constants"], e["mean_error"]] for e in elites]

    elites = [e for e in archive["front"] if e["group_out"] is not None]
    colours = next(c for c in axes.collections if isinstance(c, PathCollection) and c.get_array() is not None)
    assert colours.get_array().tolist() == [e["group_out"] for e in elites]
    scored = [line["elite"] for line in tiny_world.lines(found.run.path) if "elite" in line]
    kept = {e["id"] for e in archive["front"]}
    best = read_report(found.run.path / "report.json").champion
    assert best
    drawn = [
        places([e for e in scored if e["id"] not in kept]),
        places(elites),
        places([e for e in archive["front"] if e["group_out"] is None]),
        places([e for e in archive["front"] if not e["consistent"]]),
        [[best.complexity, best.mean_error]],
    ]
    assert [cloud.tolist() for cloud in clouds(axes)] == [points for points in drawn if points]
    assert [text.get_text() for text in axes.texts] == [f"champion ({best.id}): {best.mean_error:.2f} %"]


def test_a_grid_has_the_numbers_of_the_archive(found: Searched) -> None:
    axes = grid.draw(found).axes[0]
    written = {(t.get_position()[0] - 0.5, t.get_position()[1] - 0.5): t.get_text() for t in axes.texts}
    cells = found.run.archive().grid.cells
    assert written == {cell: f"{e.mean_error:.2f}" + ("" if e.consistent else "*") for cell, e in cells.items()}
    [frame] = axes.patches
    assert tuple(int(x) for x in frame.get_xy()) == found.archive.grid.cell(found.champion)
    shades = axes.collections[1].get_array()
    assert {(x, y): shades[y, x] for x, y in cells} == {cell: e.mean_error for cell, e in cells.items()}
    assert shades.count() == len(cells)


@pytest.mark.slow
def test_a_fit_has_the_predictions_and_the_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    ids = "llama-2-7b-tp1-codegen,llama-2-7b-tp1-reasoning"
    source = load("champion")
    forecasts = predict(source, named_experiments(None, ids.split(",")), pictures.SEEDS)
    assert evolve("predict", "champion", "--id", ids, "--json") == 0
    fitted, new = json.loads(capsys.readouterr().out)["experiments"]
    assert (fitted["fitted"], new["fitted"]) == (True, False)
    figure = fit.draw(forecasts)
    for axes, latency, ms in zip(figure.axes, ("e2e_ms", "ttft_ms", "itl_ms"), (1000, 1, 1), strict=True):
        unit = "s" if ms == 1000 else "ms"
        assert (axes.get_xlabel(), axes.get_ylabel()) == (f"observed, {unit}", f"predicted, {unit}")
        shown = {to_hex(line.get_color()): line.get_xydata().tolist() for line in axes.lines}
        bars = [segment for c in axes.collections if hasattr(c, "get_segments") for segment in c.get_segments()]
        for e, colour, bar in ((fitted, style.BLUE, bars[0]), (new, style.VERMILION, bars[1])):
            observed, predicted = e["observed"][latency]["mean"] / ms, e["predicted"][latency]["mean"] / ms
            assert shown[colour] == [[pytest.approx(observed), pytest.approx(predicted)]]
            low, high = (x / ms for x in e["predicted"][latency]["mean_80"])
            assert bar.tolist() == [[pytest.approx(observed), pytest.approx(y)] for y in (low, high)]
        error = abs(fitted["error_pct"][latency]["mean"])
        assert f"fitted {error:.1f} %" in axes.get_title("left")
    assert {"fitted", "predicted", "80 % interval", "predicted = observed", "within 10 %"} == set(entries(figure))


def test_terms_add_up_to_the_step_time(tmp_path: Path, found: Searched) -> None:
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    fitted, _ = chosen(found.run.config.data)
    figure = pictures.of_program("terms", load(str(tmp_path / "by_hand.py")), fitted)
    dense, sparse, blank = figure.axes
    assert not blank.axison and "Llama-2-7b" in dense.get_title("left") and "Mixtral" in sparse.get_title("left")
    assert set(entries(figure)) == {"base", "each * b.decode_reqs", "kv * b.kv_decode_sum"}
    tops = [c.get_paths()[0].vertices for c in dense.collections]
    for n in (1, 8, 256):
        highest = max(y for corners in tops for x, y in corners if x == n)
        assert highest == pytest.approx(5.0 + 0.1 * n + 0.001 * n * (CONTEXT + 1), rel=2e-3)  # with the new token


def test_small_terms_are_one_where_there_are_more_than_colours() -> None:
    us = tuple((float(2**i),) * 2 for i in range(12))
    shares = StepShares("m on H100, TP 1", (1, 2), tuple(f"t{i}" for i in range(12)), us)
    named = entries(terms.draw("p", [shares]))
    assert named == [*(f"t{i}" for i in range(11, 4, -1)), terms.OTHER]
    layers = terms.layers(shares, named)
    assert layers[terms.OTHER].tolist() == [0.031, 0.031]  # 1 + 2 + 4 + 8 + 16 us
    assert sum(ms[0] for ms in layers.values()) == pytest.approx(4.095)


def test_a_term_that_takes_time_off_is_below_zero() -> None:
    shares = StepShares("m on H100, TP 1", (1, 2), ("more", "less"), ((3000.0, 4000.0), (-1000.0, -500.0)))
    assert terms.draw("p", [shares]).axes[0].get_ylim() == (pytest.approx(-1.05), pytest.approx(4.2))
    with pytest.raises(InputError, match="no term adds time"):
        terms.draw("p", [StepShares("m on H100, TP 1", (1,), (), ())])


@pytest.mark.parametrize(("kind", "suffix"), [*((kind, "svg") for kind in KINDS), ("grid", "png"), ("grid", "pdf")])
def test_every_kind_and_every_format(kind: str, suffix: str, tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / f"x.{suffix.upper()}"
    out.write_text("replaced")
    assert evolve("plot", tiny_run, "--kind", kind, "--out", out) == 0
    assert out.read_bytes().startswith(MAGIC[suffix])
    assert os.listdir(tmp_path) == [out.name]


def test_without_a_name_a_picture_gets_one_that_no_file_has(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = []
    for _ in range(3):
        assert evolve("plot", tiny_run, "--kind", "front") == 0
        said.append(capsys.readouterr().out.splitlines()[-1].partition(": ")[0])
    assert said == [f"{tiny_run.name}-front{end}.svg" for end in ("", "-2", "-3")] and sorted(os.listdir()) == sorted(
        said
    )


def test_a_picture_says_what_it_shows(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert evolve("plot", tiny_run, "--kind", "front", "--out", tmp_path / "x.svg") == 0
    out, err = capsys.readouterr()
    assert not err and "complexity: the operations" in out and out.splitlines()[-1].startswith(f"{tmp_path}/x.svg: ")
    title = ElementTree.parse(tmp_path / "x.svg").getroot().findtext("{http://www.w3.org/2000/svg}title")
    assert title and title.startswith(f"{tiny_run}: mean error against complexity")


@pytest.mark.parametrize("suffix", ["svg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("png", "pdf"))])
def test_two_processes_write_the_same_bytes_whatever_the_users_settings_are(
    suffix: str, tiny_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "matplotlibrc").write_text(
        "text.usetex: True\naxes.facecolor: pink\nxtick.direction: in\nsavefig.dpi: 30\n"
    )
    for name, cwd in (("1", tmp_path), ("2", ROOT)):
        args = [sys.executable, "-W", "error", "-m", "evolve", "plot", str(tiny_run), "--kind", "front", "--out"]
        environment = {**os.environ, "PYTHONHASHSEED": name, "PYTHONPATH": str(ROOT), "MPLBACKEND": "no-such-backend"}
        environment |= {"HOME": "/proc", "MPLCONFIGDIR": "/proc/none"} if name == "2" else {}  # nothing can be written
        done = subprocess.run(
            [*args, tmp_path / f"{name}.{suffix}"], cwd=cwd, env=environment, capture_output=True, text=True, check=True
        )
        assert not done.stderr
    assert (tmp_path / f"1.{suffix}").read_bytes() == (tmp_path / f"2.{suffix}").read_bytes()


def test_the_users_settings_are_left_as_they_were(tiny_run: Path, tmp_path: Path) -> None:
    with matplotlib.rc_context({"lines.linewidth": 9.0}):
        before = dict(matplotlib.rcParams)
        assert evolve("plot", tiny_run, "--kind", "grid", "--out", tmp_path / "x.svg") == 0
        assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_names_are_drawn_as_they_are(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    named = run.rename(tmp_path / HOSTILE)
    shown = visible(HOSTILE)
    assert r"\x1b[31m\u202eb" in shown
    for kind in KINDS:
        out, figure = tmp_path / f"{kind}.svg", drawn(kind, named)
        style.write(figure, out, "svg", pictures.title(kind, [str(named)]))
        assert any(shown[-20:] in text for text in texts(out)), kind
        assert not [c for c in out.read_text() if ord(c) < 32 and c != "\n"]
        style.write(figure, tmp_path / "x.png", "png", str(named))
        style.write(figure, tmp_path / "x.pdf", "pdf", str(named))


def drawn(kind: str, run: Path) -> Figure:
    found = searched(run)
    if kind in ("fit", "terms"):
        return pictures.of_program(kind, found.source, chosen(found.run.config.data)[0])
    return pictures.of_runs(kind, [found])


def test_names_of_lines_deployments_and_terms_are_drawn_as_they_are(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that begins with a line is none to a legend of matplotlib, one in another script has no glyph."""
    runs = [tiny_world.copy(tiny_run, tmp_path).rename(tmp_path / name) for name in ("_a$b$", "模型🚀")]
    monkeypatch.chdir(tmp_path)
    style.write(history.draw([searched(Path(run.name)) for run in runs]), tmp_path / "h.svg", "svg", "h")
    assert {"_a$b$", "模型🚀"} <= set(texts(tmp_path / "h.svg"))
    style.write(history.draw([searched(Path(run.name)) for run in runs]), tmp_path / "h.png", "png", "h")
    shares = StepShares("$m_1$ <b>\x1b on _H100$, TP 1", (1, 2), ("_$t$ & <i>",), ((1.0, 2.0),))
    style.write(terms.draw("p", [shares]), tmp_path / "t.svg", "svg", "t")
    assert {r"$m_1$ <b>\x1b", "_H100$, TP 1", "_$t$ & <i>"} <= set(texts(tmp_path / "t.svg"))


REFUSALS = """
--kind front --out x.gif => --out x.gif: is not a picture
--kind front --out svg => --out svg: is not a picture
--kind pie --out x.svg => Invalid value for '--kind': 'pie' is not one of 'front', 'history', 'grid', 'fit', 'curve', 'terms'
b --kind grid --out x.svg => --kind grid draws one run
--kind grid --id a --out x.svg => --experiments and --id go with --kind fit, curve or terms
--kind front --out no/x.svg => no/x.svg: cannot be written (No such file or directory)
--kind front --out d.svg => d.svg: is a folder
--kind fit --id nope --out x.svg => --id nope: no such experiment: there are dense-chat, dense-code, sparse-chat
""".strip().splitlines()


@pytest.mark.parametrize("row", REFUSALS)
def test_what_cannot_be_drawn_is_one_line(
    row: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.svg").mkdir()
    args, _, said = row.partition(" => ")
    assert refused(capsys, tiny_run, *args.split()).startswith(said)
    assert os.listdir(tmp_path) == ["d.svg"]


def test_a_run_without_a_champion_is_refused(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    (run / "journal.jsonl").write_text("")
    (run / "report.json").unlink()
    for kind in KINDS:
        line = refused(capsys, run, "--kind", kind, "--out", tmp_path / "x.svg")
        assert line.startswith(f"{run}: no candidate was scored, so it has no champion: `evolve resume ")


def test_a_fit_needs_something_observed_and_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, observed = tmp_path / "data.yaml", ("observed", "summary", "stages:", "- {e2e")
    given = "floor", "--kind", "fit", "--experiments", file, "--out", tmp_path / "x.svg"
    lines = [line for line in tiny_world.DATA.splitlines() if not line.lstrip().startswith(observed)]
    file.write_text("\n".join(lines).replace("quality: overloaded", "quality: clean"))
    assert refused(capsys, *given).startswith("nothing to compare: no experiment has observed means")
    file.write_text(tiny_world.DATA.replace("{name: code,", "{name: code, timeout_s: 0.001,"))
    assert "no request of dense-code completes" in refused(capsys, *given, "--id", "dense-code")


def test_without_the_extra_it_says_what_to_install(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "evolve.draw.plot."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = refused(capsys, tiny_run, "--kind", "front", "--out", tmp_path / "x.svg")
    assert line == "plot: needs the extra: pip install 'evolve-latency[view]'"
