"""Thinning leaves the candidates that matter whole, says what it left out, and ends where the page fits."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from seen import by_id, seen

from evolve.draw.view import export as exporting
from evolve.draw.view import thinning
from evolve.draw.view.candidates import marked
from evolve.draw.view.export import fitting
from evolve.draw.view.followed import Followed
from evolve.draw.view.html import pack, packed_size
from evolve.draw.view.thinning import live, thin, thinned


@pytest.fixture(scope="module")
def run(tiny_run: Path) -> dict[str, Any]:
    return seen(tiny_run)


@pytest.fixture(scope="module")
def ids(tiny_run: Path) -> set[int]:
    followed = Followed(tiny_run)
    return marked(followed.story, followed.champion)


def test_front_champion_holders_improvements_and_ancestors_are_marked(tiny_run: Path, ids: set[int]) -> None:
    run = seen(tiny_run)
    rows = by_id(run)
    archive = Followed(tiny_run).run.archive()
    assert ids >= {run["champion"], *run["front"], *(e.id for e in archive.members())}
    assert all(set(rows[id]["parents"]) <= ids for id in ids)
    least = float("inf")
    for id, row in rows.items():
        if row["mean_error"] is not None and row["mean_error"] < least:
            least = row["mean_error"]
            assert id in ids
    assert ids < set(rows)


def test_marked_candidates_stay_whole_and_others_lose_texts_and_errors(run: dict[str, Any], ids: set[int]) -> None:
    whole, bare = by_id(run), by_id(thin(run, ids, 1))
    assert list(whole) == list(bare)
    for id, row in bare.items():
        assert row == (whole[id] if id in ids else whole[id] | {"text": None, "errors": None})


def test_every_nth_of_the_others_stays(run: dict[str, Any], ids: set[int]) -> None:
    others = [id for id in by_id(run) if id not in ids]
    some = thin(run, ids, 3)
    assert [id for id in by_id(some) if id not in ids] == others[2::3]
    assert [id for id in by_id(thin(run, ids, 0)) if id not in ids] == []
    assert some["thinned"]["of"] == len(by_id(run)) and some["thinned"]["kept"] == len(by_id(some))
    assert some["totals"] == run["totals"] and "one in 3 of the others" in some["thinned"]["rule"]


def test_versions_get_smaller_and_the_last_has_the_champions_detail_alone(run: dict[str, Any], ids: set[int]) -> None:
    detailed = run | {"details": {str(run["champion"]): {"id": run["champion"]}, "0": {"id": 0}}}
    versions = list(thinned(detailed, ids))
    assert versions[0] == detailed and list(versions[-1]["details"]) == [str(run["champion"])]
    counts = [len(version["candidates"]["id"]) for version in versions]
    assert counts == sorted(counts, reverse=True) and counts[-1] == len(ids)


def test_a_document_is_thinned_until_it_fits(tiny_run: Path, ids: set[int]) -> None:
    followed = Followed(tiny_run)
    whole = fitting([followed], [{}], None, 10**9)
    first = json.loads(gzip.decompress(whole))["runs"][0]
    assert first["thinned"] is None
    smaller = fitting([followed], [{}], None, packed_size(whole) - 4)
    second = json.loads(gzip.decompress(smaller))["runs"][0]
    assert packed_size(smaller) <= packed_size(whole) - 4 and second["thinned"] is not None
    assert set(ids) <= set(by_id(second))
    least = json.loads(gzip.decompress(fitting([followed], [{}], None, 0)))["runs"][0]  # as far as is possible
    assert set(by_id(least)) == ids
    assert packed_size(whole) == len(base64.b64encode(whole))


def test_a_page_that_follows_a_huge_run_gets_it_thinned(
    run: dict[str, Any], ids: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live(run, ids) == run
    monkeypatch.setattr(thinning, "LIVE", 17)
    assert live(run, ids)["thinned"]["of"] == len(by_id(run)) and set(by_id(live(run, ids))) >= ids
    assert exporting.MOST_BYTES == 8_000_000 and len(pack(live(run, ids))) < len(pack(run))
