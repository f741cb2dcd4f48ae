"""The page of `evolve view` in a real browser: every view, by mouse and by keyboard, on real, odd and hostile runs."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_world
import yaml
from browser import WAIT_MS, Tab, started
from examples import daily
from paths import ROOT
from playwright.sync_api import Browser, expect

from archive.archive import Archive
from evolve.draw.view.detail import Details
from evolve.draw.view.document import document, run_json
from evolve.draw.view.followed import Followed
from evolve.draw.view.html import pack, page
from evolve.draw.view.server import PageServer, Shown, serve
from evolve.run.folder import empty_archive, open_run

expect.set_options(timeout=WAIT_MS)
SHIPPED = ROOT / "seeds" / "champion"
VIEWS = ["fit", "residuals", "diff", "validation"]  # Compare, then Search
VIEWS += ["overview", "history", "front", "grid", "lineage", "program", "proposers", "rejects"]
LEDGER = yaml.safe_load("""
totals: {requests: 2, tokens_in: 900, tokens_out: 300, usd: 0.01, possibly_usd: 0.002}
models:
  openai/a: {requests: 2, tokens_in: 900, tokens_out: 300, usd: 0.01, possibly_usd: 0.002, outcomes: {answered: 1, timeout: 1}}
rows:
- {call: c1, attempt: 1, model: openai/a, tokens_in: 900, tokens_out: 300, usd: 0.01, seconds: 2.5, outcome: answered, verdict: scored}
- {call: c2, attempt: 1, model: null, tokens_in: null, tokens_out: null, usd: null, seconds: null, outcome: timeout, verdict: null}
""")
VALIDATION = yaml.safe_load("""
call: 1
coverage: [{class: inside, figure: e2e, runs: 9, covered_80: 0.8, covered_95: null}]
kinds:
- kind: models
  mean_abs_error_pct: &errors {e2e: 2.0, ttft: 8.0, itl: null}
  bias_pct: null
  coverage_80: null
  coverage_95: null
  folds:
  - name: models-a
    champion: {id: 3, text: "def step_time(b, s):\\n    return 1.0\\n", candidates: 20}
    mean_abs_error_pct: *errors
    rows: [{experiment: dense-chat, e2e: -3.0, ttft: 8.0, itl: null, baselines: {blackbox: {e2e: 5.0, ttft: null, itl: null}}}]
  - {name: models-a, champion: null, mean_abs_error_pct: *errors, rows: []}
""")
PLAN = yaml.safe_load("""
rows:
- &first
  {deployment: H100 TP 2, replicas: 2, gpus: 4, gpus_80: 6, gpus_95: null, usd_per_hour: 10.0, usd_per_million_output_tokens: 0.5,
   headroom_pct: 37.5, e2e_ms: {mean: 900.0}, ttft_ms: {p99: 300.0}, itl_ms: {mean: 25.0},
   intervals_ms: {ttft_p99: {"80": [200.0, 800.0], calibrated: false}, itl: {"80": [20.0, 30.0], calibrated: true}}}
- {<<: *first, deployment: H100 TP 4, gpus: 8, gpus_80: 8, gpus_95: 8, usd_per_hour: 20.0, usd_per_million_output_tokens: 1.0,
   headroom_pct: 50.0, ttft_ms: {p99: 200.0}, itl_ms: {mean: 20.0}, intervals_ms: {}}
cautions: [near the knee]
warnings: [near the knee, fitted on few runs]
serve: vllm serve a/model --tensor-parallel-size 2
probe: evolve probe champion --model a-model --hardware H100 --tp 2 --budget-runs 3
pictures:
  title: 20 requests/s need 4 H100s.
  unit: requests/s
  asked: 20.0
  replicas: 2
  deployment: H100 TP 2
  limits: {ttft_p99: 500.0, itl_mean: 40.0}
  latency:
  - {load: 5.0, ms: {ttft_p99: 100.0, itl_mean: 20.0}, low_ms: {}, high_ms: {}}
  - {load: 20.0, ms: {ttft_p99: 300.0, itl_mean: 25.0}, low_ms: {ttft_p99: 200.0}, high_ms: {ttft_p99: 800.0}}
  - {load: 30.0, ms: {ttft_p99: null, itl_mean: 30.0}, low_ms: {}, high_ms: {}}
  speed:
  - deployment: H100 TP 2
    predicted:
    - {level: 1.0, client_tokens_per_s: 90.0, gpu_tokens_per_s: 45.0}
    - {level: 16.0, client_tokens_per_s: 60.0, gpu_tokens_per_s: 480.0}
    measured: [{level: 1.0, client_tokens_per_s: 80.0, gpu_tokens_per_s: 40.0}]
  loads: [10.0, 20.0]
  costs: dollars per hour
  cost: [{deployment: H100 TP 2, cost: [5.0, 10.0]}, {deployment: H100 TP 4, cost: [10.0, 20.0]}]
""")
HOSTILE = "<img src=x onerror=\"ran=1\"></script><script>ran=1</script><b>%{y}</b><a href='javascript:ran=1'>%"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests here."""
    with started() as browser:
        yield browser


@pytest.fixture(scope="module")
def tabs(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Opens a page of a document, an address or a file; all tabs are closed in the end."""
    opened: list[Tab] = []

    def open_tab(target: str | Path, width: int = 1280, scheme: str = "light", after: str = "") -> Tab:
        tab = Tab(browser, width, scheme)
        opened.append(tab)
        tab.open((target.as_uri() if isinstance(target, Path) else target) + after)
        return tab

    yield open_tab
    for tab in opened:
        tab.close()


@pytest.fixture(scope="module")
def tiny_json(tiny_run: Path) -> dict[str, Any]:
    """The document of the tiny run, with its champion's detail, a ledger and a validation."""
    followed = Followed(tiny_run)
    run = run_json(followed)
    assert followed.champion is not None
    outcome = followed.story.outcome(followed.champion)
    assert outcome is not None
    run["details"] = {str(followed.champion): Details(followed.run, followed.data).of(outcome)}
    run |= {"ledger": LEDGER, "validation": VALIDATION}
    run["baselines"] = {"blackbox": {"e2e": 3.2, "ttft": 4.1, "itl": None}}
    return document([run], live=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Path]:
    """Writes the page of a document to a file."""

    def write(value: dict[str, Any]) -> Path:
        path = tmp_path_factory.mktemp("page") / "page.html"
        path.write_text(page().export(pack(value)))
        return path

    return write


@pytest.fixture(scope="module")
def tiny_page(tiny_json: dict[str, Any], written: Callable[[dict[str, Any]], Path]) -> Path:
    """The page of the tiny run."""
    return written(tiny_json)


def through(tab: Tab) -> None:
    """Open every view, and every table in it, and complain if the page did."""
    for key in tab.views():
        tab.view(key)
        tab.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        tab.page.wait_for_timeout(30)
        assert not tab.problems, (key, tab.problems)


def shown_ids(tab: Tab, view: str) -> set[int]:
    """The ids of the programs in the tables of a view."""
    texts = tab.page.locator(f"#view-{view} tr[data-id]").evaluate_all("rows => rows.map(r => r.dataset.id)")
    return {int(text) for text in texts}


@pytest.mark.slow
def test_every_view_of_the_shipped_run_opens_without_an_error(tabs: Callable[..., Tab], written: Any) -> None:
    followed = Followed(SHIPPED)
    tab = tabs(written(document([run_json(followed)], live=False)))
    assert tab.views() == VIEWS
    through(tab)
    expect(tab.page.locator("#state")).to_have_text(
        "finished: 1,000 candidates fitted"
    )  # the figure of docs/results.md
    expect(tab.page.locator("aside h2")).to_have_text(f"Program {followed.champion}")
    tab.view("grid")
    assert shown_ids(tab, "grid") == {e.id for e in followed.story.population.archive.grid.cells.values()}


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_no_view_has_a_grave_fault_of_accessibility_or_is_wider_than_its_window(
    tabs: Callable[..., Tab], tiny_page: Path, width: int
) -> None:
    tab = tabs(tiny_page, width)
    assert tab.views() == [*VIEWS, "ledger"]
    assert tab.grave() == []
    for key in tab.views():
        tab.view(key)
        tab.page.select_option(".switches select", "light")
        tables = f"document.querySelectorAll('#view-{key} details').forEach(d => {{ d.open = !d.open }})"
        tab.page.evaluate(tables)
        assert tab.overflow() <= 0, key
        assert tab.grave(f"#view-{key}") == [], key
        tab.page.select_option(".switches select", "dark")
        assert tab.grave(f"#view-{key}", contrast_only=True) == [], key  # what else could a theme change?
        tab.page.evaluate(tables)
    assert tab.grave() == []  # dark
    assert not tab.problems


def test_a_click_on_a_point_selects_its_program_in_every_view(tabs: Callable[..., Tab], tiny_page: Path) -> None:
    tab = tabs(tiny_page)
    tab.view("history")
    # the point that is farthest from all others, so that the click can only mean it
    point = tab.page.evaluate("""() => {
        const plot = document.querySelector('#view-history .plot'), box = plot.getBoundingClientRect();
        const { xaxis, yaxis } = plot._fullLayout, trace = plot.data[0];
        const points = trace.x.map((x, k) => ({ id: trace.customdata[k], x: box.x + xaxis._offset + xaxis.d2p(x), y: box.y + yaxis._offset + yaxis.d2p(trace.y[k]) }))
            .filter((p) => p.y > box.y + yaxis._offset && p.y < box.y + yaxis._offset + yaxis._length);
        const apart = (p) => Math.min(...points.filter((q) => q !== p).map((q) => Math.hypot(q.x - p.x, q.y - p.y)));
        return points.sort((p, q) => apart(q) - apart(p))[0];
    }""")
    tab.page.mouse.move(point["x"] + 1, point["y"])
    tab.page.mouse.click(point["x"], point["y"])
    expect(tab.page.locator("aside h2")).to_have_text(f"Program {point['id']}")
    assert f"id={point['id']}" in tab.page.url
    expect(tab.page.locator("#announcer")).to_contain_text(f"Program {point['id']} selected")
    tab.view("program")
    expect(tab.page.locator("#view-program h3").first).to_contain_text(f"Program {point['id']}")
    tab.view("lineage")
    tab.page.click("#view-lineage summary")
    tab.page.wait_for_selector("#view-lineage details table")
    assert point["id"] in shown_ids(tab, "lineage")
    assert not tab.problems


def test_back_and_forward_go_through_what_was_shown(tabs: Callable[..., Tab], tiny_page: Path) -> None:
    tab = tabs(tiny_page)
    expect(tab.page.locator("#view-overview")).to_be_visible()  # a page of one run begins with its search
    tab.view("history")
    tab.page.evaluate("select(0), select(1)")
    tab.page.go_back()
    expect(tab.page.locator("aside h2")).to_have_text("Program 0")
    tab.page.go_back()
    tab.page.go_back()
    expect(tab.page.locator("#view-history")).to_be_hidden()
    tab.page.go_forward()
    expect(tab.page.locator("#view-history")).to_be_visible()
    assert not tab.problems


@pytest.mark.slow
def test_the_keyboard_alone_reaches_every_view_and_selects_programs(tabs: Callable[..., Tab], tiny_page: Path) -> None:
    tab = tabs(tiny_page)
    press = tab.page.keyboard.press
    press("Tab")
    expect(tab.page.locator("#skip")).to_be_focused()
    press("Tab")  # the theme
    for section in ("Compare", "Search"):
        press("Tab")
        expect(tab.page.locator(f"#section-{section}")).to_be_focused()
        press("Enter")
        expect(tab.page.locator(f"#section-{section}")).to_have_attribute("aria-current", "true")
        expect(tab.page.locator(f"#section-{section}")).to_be_focused()
    for key in VIEWS[VIEWS.index("overview") :]:
        press("Tab")
        press("Enter")
        expect(tab.page.locator(f"#link-{key}")).to_be_focused()
        expect(tab.page.locator(f"#view-{key}")).to_be_visible()
    tab.page.evaluate("document.getElementById('link-front').focus()")
    press("Enter")
    expect(tab.page.locator("#view-front")).to_be_visible()
    summary = tab.page.locator("#view-front summary")
    for _ in range(30):
        press("Tab")
        if summary.evaluate("e => e === document.activeElement"):
            break
    expect(summary).to_be_focused()
    press("Enter")
    tab.page.wait_for_selector("#view-front table")
    press("Tab")  # the table's box
    expect(tab.page.locator("#view-front .scroll")).to_be_focused()
    press("Tab")
    press("Tab")
    wanted = tab.page.evaluate("document.activeElement.textContent")
    press("Enter")
    expect(tab.page.locator("aside h2")).to_have_text(f"Program {wanted}")
    assert tab.page.evaluate("document.activeElement.textContent") == wanted  # the focus stays where it was
    tab.page.evaluate("document.getElementById('goto').focus()")
    tab.page.keyboard.type("0")
    press("Enter")
    expect(tab.page.locator("aside h2")).to_have_text("Program 0")
    expect(tab.page.locator("#goto")).to_be_focused()
    assert not tab.problems


def test_the_grid_in_time_is_that_of_the_archive(tabs: Callable[..., Tab], tiny_page: Path, tiny_run: Path) -> None:
    tab = tabs(tiny_page, after="#view=grid")
    tab.page.click("#view-grid summary")
    outcomes = open_run(tiny_run).outcomes()
    for after in (5, len(outcomes) // 2, len(outcomes)):
        archive: Archive = empty_archive(open_run(tiny_run).config)
        for outcome in outcomes[:after]:
            if outcome.elite:
                archive.add(outcome.elite)
        tab.page.locator("#grid-time").fill(str(after))
        assert shown_ids(tab, "grid") == {e.id for e in archive.grid.cells.values()}


def test_a_difference_of_texts_rebuilds_both_and_quartiles_are_numpys(
    tabs: Callable[..., Tab], tiny_page: Path
) -> None:
    tab, rng = tabs(tiny_page), random.Random(0)
    for _ in range(30):
        before, after = ("\n".join(rng.choice("abc") for _ in range(rng.randint(0, 12))) for _ in range(2))
        lines = tab.page.evaluate("([a, b]) => lineDiff(a, b)", [before, after])
        assert "\n".join(line for mark, line in lines if mark in " -") == before
        assert "\n".join(line for mark, line in lines if mark in " +") == after
    values = sorted(rng.random() for _ in range(6))
    assert tab.page.evaluate("(v) => quantile(v, 0.25)", values) == pytest.approx(np.quantile(values, 0.25))


def test_text_of_a_run_is_never_markup(tabs: Callable[..., Tab], tiny_json: Any, written: Any) -> None:
    tab = tabs(written(hostile(tiny_json)))
    through(tab)
    for select in range(daily(1, otherwise=3)):
        tab.page.fill("#goto", str(select))
        tab.page.press("#goto", "Enter")
        through(tab)
    tab.view("history")
    tab.page.mouse.move(500, 450)  # what is shown on hovering is text too
    assert tab.page.evaluate("typeof ran") == "undefined"
    assert tab.page.locator("img, main b, main a").count() == 0
    assert tab.page.locator("script:not(:empty)").count() == 2  # plotly and the page's own
    expect(tab.page.locator("aside pre")).to_contain_text(HOSTILE)
    expect(tab.page.locator("#notes")).to_contain_text(HOSTILE)
    tab.view("fit")
    expect(tab.page.locator("#view-fit table")).to_contain_text(HOSTILE)


def hostile(value: dict[str, Any]) -> dict[str, Any]:
    """The document with HOSTILE behind every text that a run, its data or its models can choose, or a plan's file."""
    told = copy.deepcopy(value)
    (run,) = told["runs"]
    columns = run["candidates"]
    columns["idea"] = ["" for _ in columns["idea"]]
    run |= {"notes": [""], "name": "", "rule": ""}
    for name in ("text", "why", "idea"):
        columns[name] = [None if text is None else f"{text}{HOSTILE}" for text in columns[name]]
    keep = {"candidates", "state", "use", "at_bound", "quality"}

    def spoilt(x: Any, key: str = "") -> Any:
        if isinstance(x, dict):
            rename = key in ("baselines", "models", "rejected", "fields", "cpu_s_by_stage", "outcomes")
            return {k + HOSTILE if rename else k: v if k in keep else spoilt(v, k) for k, v in x.items()}
        if isinstance(x, list):
            return [spoilt(item) for item in x]
        return x + HOSTILE if isinstance(x, str) else x

    return told | {"runs": [spoilt(run)], "plan": spoilt(PLAN)}


# Columns of candidates that may have no values.
UNKNOWN = "text idea group_out e2e ttft itl worst3 cpu_s errors generation kept consistent"
EMPTY: dict[str, Any] = {"champion": None, "front": [], "best": [], "baselines": {}, "details": {}}
EMPTY |= {"validation": None, "ledger": None, "cpu_s_by_stage": {}}


def cut(value: dict[str, Any], count: int) -> dict[str, Any]:
    """The document after so many outcomes, without all that is optional."""
    made = copy.deepcopy(value)
    (run,) = made["runs"]
    run |= EMPTY
    run["candidates"] = {name: column[:count] for name, column in run["candidates"].items()}
    run["totals"] = {"proposals": count, "fitted": count, "scored": count, "rejected": {}}
    return made


@pytest.mark.slow
def test_an_empty_run_says_what_is_missing_and_which_command_makes_it(
    tabs: Callable[..., Tab], tiny_json: Any, written: Any
) -> None:
    tab = tabs(written(cut(tiny_json, 0) | {"live": False}))
    through(tab)
    commands = {"history": "evolve resume", "front": "evolve resume", "validation": "evolve validate"}
    for view, command in commands.items():
        tab.view(view)
        expect(tab.page.locator(f"#view-{view} code").first).to_contain_text(command)


@pytest.mark.slow
def test_one_candidate_and_unknown_figures_break_no_view(
    tabs: Callable[..., Tab], tiny_json: Any, written: Any
) -> None:
    one, best = cut(tiny_json, 1), [{"after": 1, "mean_error": 3.0, "group_out": None}]
    one["runs"][0] |= {"champion": one["runs"][0]["candidates"]["id"][0], "best": best}
    unknown = cut(tiny_json, 12)
    (run,) = unknown["runs"]
    run["candidates"] |= {name: [None] * 12 for name in UNKNOWN.split()}
    bare = [{"id": e["id"], "use": e["use"], "fields": {}, "stages": []} for e in run["experiments"]]
    run["experiments"] = [dict.fromkeys(e) | b for e, b in zip(run["experiments"], bare, strict=True)]
    run["champion"] = run["candidates"]["id"][0]
    several = copy.deepcopy(tiny_json)  # the median of runs of which one is empty and one has unknown figures
    several["runs"] = [tiny_json["runs"][0] | {"name": f"run {k}"} for k in range(3)]
    several["runs"] += [run, cut(tiny_json, 0)["runs"][0]]
    for made in (one, unknown, several):
        through(tabs(written(made)))


def test_several_runs_are_compared_with_their_median(tabs: Callable[..., Tab], tiny_json: Any, written: Any) -> None:
    runs = [tiny_json["runs"][0] | {"name": f"runs/{k}", "state": "stopped"} for k in range(3)]
    tab = tabs(written(tiny_json | {"runs": runs}))  # which begins with their comparison
    assert tab.page.locator(".differ").count() == 0
    names = tab.page.evaluate("document.querySelector('#view-compare .plot').data.map(t => t.name)")
    assert names[1:] == ["quartiles", "median", "runs/0", "runs/1", "runs/2"]
    tab.page.select_option("#which select", "2")
    expect(tab.page.locator("#state")).to_contain_text("evolve resume runs/2 continues")
    assert not tab.problems


def test_runs_on_different_data_are_in_different_charts_below_a_sentence_that_names_them(
    tabs: Callable[..., Tab], tiny_json: Any, written: Any
) -> None:
    (run,) = tiny_json["runs"]
    other = run | {"name": "c", "data": "f00d", "fitted": run["fitted"][:2]}
    tab = tabs(written(tiny_json | {"runs": [run | {"name": "a"}, other, run | {"name": "b"}]}))
    charts = tab.page.locator("#view-compare .plot").evaluate_all("all => all.map(p => p.data.map(t => t.name))")
    assert charts == [["a", "b"], ["c"]]
    both = f"a, b fitted {len(run['fitted'])} measured runs (data {run['data']}); c fitted 2 measured runs (data f00d)"
    expect(tab.page.locator("#view-compare .differ")).to_contain_text(both)
    expect(tab.page.locator("#view-compare .differ")).to_be_visible()
    assert not tab.problems


def test_lines_of_a_lineage_pass_beside_all_other_programs(tabs: Callable[..., Tab], tiny_page: Path) -> None:
    """On the tiny run, as plotly has it, and on families at random: half of them have parents of long ago."""
    tab, rng = tabs(tiny_page, after="#view=lineage"), random.Random(0)
    for shape in range(daily(24, otherwise=400)):
        size, far = rng.randint(1, 60), shape % 2
        parents = {n: rng.sample(range(0 if far else max(0, n - 6), n), min(n, rng.randint(0, 3))) for n in range(size)}
        assert_a_clear_tree(parents, tab.page.evaluate(TREE, list(parents.items())))
    for id in tab.page.evaluate("shownRun().candidates.id"):
        parents = dict(tab.page.evaluate(FAMILY, id))
        assert id in parents
        assert_a_clear_tree(parents, tab.page.evaluate(TREE, list(parents.items())))
    # what is drawn: each program beside its number, and all those lines
    last = tab.page.evaluate("shownRun().candidates.id.at(-1)")
    tab.page.evaluate(f"select({last})")
    drawn = tab.page.evaluate("document.querySelector('#view-lineage .plot').data.slice(1).flatMap(t => t.text)")
    shown = tab.page.evaluate("familyOf(shownRun(), state.id, 4).ids.length")
    assert len(set(drawn)) == len(drawn) == shown and str(last) in drawn
    assert not tab.problems


TREE = """(parents) => {
    const { places, lines, width, height } = familyTree(new Map(parents));
    return { places: [...places], lines, width, height };
}"""
FAMILY = """(id) => {
    const { ids } = familyOf(shownRun(), id, 30);
    return ids.map((n) => [n, parentsHere(shownRun(), n).filter((p) => ids.includes(p))]);
}"""
BESIDE = 0.2  # of a column and a row: a program's mark takes 6 of 62 and of 64 pixels on each side


def assert_a_clear_tree(parents: dict[int, list[int]], tree: dict[str, Any]) -> None:
    """Every program is below its parents, and each line from a parent to a child has a distance to all others."""
    places = {node: np.array(place) for node, place in tree["places"]}
    assert places.keys() == parents.keys()
    assert all(0 <= x <= tree["width"] - 1 and 0 <= y <= tree["height"] - 1 for x, y in places.values())
    pairs = [(parent, child) for child, own in parents.items() for parent in own]
    assert len(tree["lines"]) == len(pairs)
    for (parent, child), line in zip(pairs, map(np.array, tree["lines"]), strict=True):
        assert places[parent][1] > places[child][1]
        assert (line[0] == places[parent]).all() and (line[-1] == places[child]).all()
        along = np.concatenate([a + np.linspace(0, 1, 50)[:, None] * (b - a) for a, b in itertools.pairwise(line)])
        for other in places.keys() - {parent, child}:
            assert np.abs(along - places[other]).max(axis=1).min() > BESIDE, (parent, child, other)
    for a, b in itertools.combinations(places.values(), 2):
        assert np.abs(a - b).max() >= 0.999


@pytest.mark.parametrize("width", [1280, 390])
def test_program_text_is_never_cut(tabs: Callable[..., Tab], tiny_json: Any, written: Any, width: int) -> None:
    told = copy.deepcopy(tiny_json)
    columns = told["runs"][0]["candidates"]
    line = f"    {'long_name_of_a_constant' * 20} = 1.0"
    columns["text"] = [f"{text}{line}\n" * 3 for text in columns["text"]]
    tab = tabs(written(told), width)
    for view in ("overview", "program", "diff"):
        tab.view(view)
        boxes = tab.page.locator(f"#view-{view} .text, aside .text").filter(visible=True)
        assert boxes.count() > 0
        for box in boxes.all():
            hidden = "e => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]"
            assert box.evaluate(hidden) == [0, 0], view
            beyond = "e => [...e.children].some(s => [...s.getClientRects()].some(r => r.right > e.getBoundingClientRect().right))"
            assert not box.evaluate(beyond), view
    shown = tab.page.locator("#view-diff .text").text_content() or ""
    assert line in shown  # its spaces too: what is copied is the program


@pytest.mark.parametrize("width", [1280, 390])
def test_a_plan_comes_first_and_needs_no_run(
    tabs: Callable[..., Tab], tiny_json: Any, written: Any, width: int
) -> None:
    for runs, sections in (([], ["Plan"]), (tiny_json["runs"], ["Plan", "Compare", "Search"])):
        tab = tabs(written(document(runs, False, PLAN)), width)
        expect(tab.page.locator("#view-plan .answer")).to_have_text("20 requests/s need 4 H100s.")
        expect(tab.page.locator("aside")).to_be_hidden()
        assert tab.page.locator(".sections a").all_text_contents() == sections
        assert tab.overflow() <= 0 and tab.grave() == [] and not tab.problems
    tab.view("overview")
    expect(tab.page.locator("aside")).to_be_visible()


def test_a_plan_has_its_figures_in_a_table_and_in_charts(tabs: Callable[..., Tab], written: Any) -> None:
    tab = tabs(written(document([], False, PLAN)))
    rows = tab.page.locator("#view-plan tbody tr").evaluate_all(
        "all => all.map(r => [...r.cells].map(c => c.textContent))"
    )
    first = ["H100 TP 2", "2", "4", "10.00", "0.50", "300 (200–800)*", "25 (20–30)", "+38", "6", "–"]
    assert rows == [first, ["H100 TP 4", "2", "8", "20.00", "1.00", "200", "20", "+50", "8", "8"]]
    charts = tab.page.locator("#view-plan .plot").evaluate_all(
        "all => all.map(p => p.data.map(t => [t.name ?? null, t.x, t.y]))"
    )
    loads = [5, 20, 30]
    assert charts[0] == [
        [None, [20], [200]],
        ["80 % interval", [20], [800]],
        ["predicted", loads, [100, 300, None]],
        ["limit", [0, 30], [500, 500]],
        ["asked load", [20, 20], [0, 1250]],
    ]
    assert charts[2] == [["H100 TP 2", [90, 60], [45, 480]], [None, [80], [40]], ["measured", [None], [None]]]
    assert [name for name, _, _ in charts[3]] == ["H100 TP 2", "H100 TP 4", "asked load"]
    summaries = tab.page.locator("#view-plan .pair .note").all_text_contents()
    assert "At 30 requests/s it exceeds the limit." in summaries[0] and "all loads" in summaries[1]
    assert tab.page.locator("#view-plan .warnings li").all_text_contents() == ["near the knee", "fitted on few runs"]


def test_the_commands_of_a_plan_are_copied(tabs: Callable[..., Tab], written: Any) -> None:
    tab = tabs(written(document([], False, PLAN)), after="#view=plan")
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for name, command in (("Deploy", PLAN["serve"]), ("Choose", PLAN["probe"])):
        copy = tab.page.locator(f"#view-plan [aria-label^='Copy: {name}']")
        copy.click()
        expect(copy).to_have_text("Copied")
        assert tab.page.evaluate("navigator.clipboard.readText()") == command
    tab.page.evaluate("() => { navigator.clipboard.writeText = null }")
    tab.page.locator("#view-plan [aria-label^='Copy: Deploy']").click()
    expect(tab.page.locator("#announcer")).to_have_text("Selected")
    assert tab.page.evaluate("getSelection().toString().trim()") == PLAN["serve"]


def test_a_live_page_appends_outcomes_keeps_the_selection_and_survives_its_server(
    tabs: Callable[..., Tab], tiny_run: Path, tmp_path: Path
) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    report = (run / "report.json").rename(run / "later.json")
    (run / "journal.jsonl").write_bytes(b"".join(whole[:12]))
    server = served(run)
    tab = tabs(server.address, after="#view=history&id=2")
    state, plot = tab.page.locator("#state"), "document.querySelector('#view-history .plot')"
    expect(state).to_contain_text("evolve resume")
    before = tab.page.evaluate(f"{plot}.data[0].x.length")
    tab.page.click("#view-history summary")
    button = tab.page.locator("#view-history .id").first
    button.focus()
    with (run / "journal.jsonl").open("ab") as journal:
        journal.write(b"".join(whole[12:]))
    report.rename(run / "report.json")
    expect(state).to_contain_text("finished")
    assert tab.page.evaluate(f"{plot}.data[0].x.length") > before
    expect(tab.page.locator("aside h2")).to_have_text("Program 2")
    expect(button).to_be_focused()
    assert tab.page.evaluate("shownRun().size") == len(open_run(tiny_run).outcomes())
    tab.page.context.set_offline(True)  # as if the server were gone
    expect(state).to_contain_text("disconnected")
    tab.page.context.set_offline(False)
    expect(state).to_contain_text("finished")
    tab.view("program")  # a detail of the server's own making
    expect(tab.page.locator("#view-program caption").first).to_contain_text("bounds and standard errors")
    server.shutdown()
    server.server_close()
    assert all("ERR_INTERNET_DISCONNECTED" in problem for problem in tab.problems), tab.problems


def served(run: Path) -> PageServer:
    """A server of this run, in a thread."""
    server = serve(0, page(), Shown([Followed(run)]))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server
