"""The pictures of the documentation are what `evolve plot` draws today, small, and described where they are shown."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import doc_tables
import pictures
import pytest
from paths import ROOT

IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
ID = re.compile(r"\b(?:[mpC]\w*_)?[mp]?[0-9a-f]{10}\b")  # of a shape: a digest of its exact corners
NUMBER = re.compile(r"-?\d+\.\d+")
TOLERANCE = 0.02  # points; the last digits of a prediction depend on the processor
LARGEST = 80_000  # bytes; of those in README 60,000
SLOW = ("front.svg", "history.svg", "grid.svg")  # these read the whole run


def locked(package: str) -> str:
    """The version in the lock file."""
    text = (ROOT / "requirements-dev.lock").read_text("utf-8")
    [found] = re.findall(rf"^{package}==([^\s;]+)", text, re.MULTILINE)
    return str(found)


def parts(svg: str) -> tuple[list[str], list[float]]:
    """What is between the numbers of an SVG, and the numbers."""
    text = ID.sub("", svg)
    return NUMBER.split(text), [float(x) for x in NUMBER.findall(text)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in pictures.PICTURES]
)
def test_a_picture_is_what_the_command_draws(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if version("matplotlib") != locked("matplotlib"):
        pytest.skip(f"matplotlib {version('matplotlib')} draws other files than the locked {locked('matplotlib')}")
    monkeypatch.chdir(ROOT)
    pictures.draw(name, tmp_path / name)
    shipped, drawn = (parts((folder / name).read_text("utf-8")) for folder in (pictures.FOLDER, tmp_path))
    assert shipped[0] == drawn[0], f"{name}: run `make pictures`"
    assert shipped[1] == pytest.approx(drawn[1], abs=TOLERANCE), f"{name}: run `make pictures`"


def test_another_number_or_word_is_another_picture() -> None:
    text = (pictures.FOLDER / "fit.svg").read_text("utf-8")
    words, numbers = parts(text)
    assert len(numbers) > 300
    moved, renamed = text.replace(f"{numbers[50]}", f"{numbers[50] + 0.1:.6f}"), text.replace(">fitted<", ">fited<")
    assert parts(moved)[1] != pytest.approx(numbers, abs=TOLERANCE) and parts(renamed)[0] != words


def test_every_picture_is_shown_and_described_and_every_one_shown_is_there() -> None:
    shown = set()
    for page in (ROOT / "README.md", *doc_tables.pages()):
        for words, target in IMAGE.findall(page.read_text("utf-8")):
            file = (page.parent / target).resolve()
            assert file.is_file(), f"{page.name}: {target} does not exist"
            assert len(words) > 80, f"{page.name}: {target}: say what is seen"
            shown.add(file)
    assert shown == {pictures.FOLDER / name for name in pictures.PICTURES} == set(pictures.FOLDER.iterdir())


def test_pictures_are_small_and_have_a_white_ground() -> None:
    for file in pictures.FOLDER.iterdir():
        assert file.stat().st_size < LARGEST
        assert 'style="fill: #ffffff"' in file.read_text("utf-8").split("axes_1")[0]
    in_readme = [ROOT / target for _, target in IMAGE.findall((ROOT / "README.md").read_text("utf-8"))]
    assert in_readme and all(file.stat().st_size < 60_000 for file in in_readme)
