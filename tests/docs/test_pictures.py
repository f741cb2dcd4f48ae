"""The pictures of the documentation are what `evolve plot` draws today, small, and described where they are shown."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pictures
import pytest
from paths import ROOT

IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
ID = re.compile(r"\b(?:[mpC]\w*_)?[mp]?[0-9a-f]{10}\b")  # of a shape: a digest of its exact corners
NUMBER = re.compile(r"-?\d+\.\d+")
TOLERANCE = 0.02  # points; the last digits of a prediction depend on the processor
SLOW = ("front.svg", "history.svg", "grid.svg")  # these read the whole run


def parts(svg: str) -> tuple[list[str], list[float]]:
    """What is between the numbers of an SVG, and the numbers."""
    text = ID.sub("", svg)
    return NUMBER.split(text), [float(x) for x in NUMBER.findall(text)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in pictures.PICTURES]
)
def test_a_picture_is_what_the_command_draws(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [locked] = re.findall(r"^matplotlib==([^\s;]+)", (ROOT / "requirements-dev.lock").read_text("utf-8"), re.MULTILINE)
    if version("matplotlib") != locked:
        pytest.skip(f"matplotlib {version('matplotlib')} draws other files than the locked {locked}")
    monkeypatch.chdir(ROOT)
    pictures.draw(name, tmp_path / name)
    shipped, drawn = (parts((folder / name).read_text("utf-8")) for folder in (pictures.FOLDER, tmp_path))
    assert shipped[0] == drawn[0], f"{name}: run `make pictures`"
    assert shipped[1] == pytest.approx(drawn[1], abs=TOLERANCE), f"{name}: run `make pictures`"


def test_every_picture_is_shown_described_and_small() -> None:
    shown = set()
    for page in (ROOT / "docs").glob("*.md"):
        for words, target in IMAGE.findall(page.read_text("utf-8")):
            assert len(words) > 80, f"{page.name}: {target}: say what is seen"
            shown.add((page.parent / target).resolve())
    assert shown == {pictures.FOLDER / name for name in pictures.PICTURES} == set(pictures.FOLDER.iterdir())
    assert all(file.stat().st_size < 80_000 for file in shown)
