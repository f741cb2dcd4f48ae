"""docs/rejudged.md agrees with the list of beliefs in the code, and the command takes names of beliefs."""

from __future__ import annotations

import re

import pytest
from commands import research_command
from paths import ROOT

from research.rejudged.claims import CLAIMS, Claim, Judgement
from research.rejudged.finding import Figure, Finding
from research.rejudged.page import ADVICE, advice, anchor, figures_table, overview
from research.rejudged.verdict import KEPT, OVERTURNED, Estimate

PAGE = (ROOT / "docs" / "rejudged.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, flags=re.M | re.S))


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_section_says_what_the_code_does(claim: Claim) -> None:
    section = flat(SECTIONS[claim.title])
    for text in (claim.belief, claim.source, claim.experiment, claim.rule.text):
        assert flat(text) in section
    assert f"`.venv/bin/python -m research rejudged {claim.name}`" in section


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_verdict_in_the_table_is_that_of_the_section_and_of_the_rule(claim: Claim) -> None:
    line = next(x for x in PAGE.splitlines() if x.startswith(f"| [{claim.title}](#{anchor(claim.title)})"))
    name, verdict, _, value, interval, unit, _ = (cell.strip() for cell in line.split("|")[2:-1])
    assert name == claim.name
    assert f"**Verdict: {verdict}.**" in SECTIONS[claim.title]
    value, interval = (text.replace("at least ", "") for text in (value, interval))
    low, high = map(float, interval.split(" to "))
    shown = Estimate(float(value), low, high, unit, "")
    near = {claim.rule.verdict(shown)}
    for step in (-0.05, 0.05):  # the figures are rounded
        near.add(claim.rule.verdict(Estimate(shown.value + step, low + step, high + step, unit, "")))
    assert verdict in near


def test_the_overview_has_the_verdict_of_the_rule() -> None:
    claim = next(c for c in CLAIMS if c.name == "mixed-heavy")
    judgement = Judgement(claim, Finding(Estimate(4.0, 2.0, 6.0, "%", "50 cycles"), ()))
    (row,) = overview([judgement]).rows
    figures = ("4.0", "2.0 to 6.0", "%", "50 cycles")
    assert row.values == (claim.title, "mixed-heavy", "overturned", claim.estimate, *figures)
    assert judgement.to_json()["verdict"] == "overturned"


def test_a_figure_at_an_end_of_what_was_searched_is_a_bound() -> None:
    claim = next(c for c in CLAIMS if c.name == "token-ratio")
    ends = Estimate(1000.0, 0.001, 1000.0, "times", "9 cycles", (0.001, 1000.0))
    (row,) = overview([Judgement(claim, Finding(ends, ()))]).rows
    assert row.values[4:6] == ("at least 1000", "at most 0.001 to at least 1000")
    (figure,) = figures_table([Figure("x", 2.0, "times", low=1.0, high=1000.0, searched=ends.searched)]).rows
    assert figure.values[1:3] == ("2.00", "1.00 to at least 1000")


def test_advice_is_given_only_while_its_verdicts_are_these() -> None:
    verdicts = {name: verdict for a in ADVICE for name, verdict in a.rests_on.items()}
    assert verdicts.keys() <= {claim.name for claim in CLAIMS}
    for a in ADVICE:  # all hold on the page
        assert flat(a.text) in flat(PAGE)
        for name, verdict in a.rests_on.items():
            title = next(claim.title for claim in CLAIMS if claim.name == name)
            assert f"**Verdict: {verdict}.**" in SECTIONS[title]
    ttft = next(c for c in CLAIMS if c.name == "ttft")  # overturned below 100 %, kept above
    for value, verdict in ((20.0, OVERTURNED), (200.0, KEPT)):
        judgement = Judgement(ttft, Finding(Estimate(value, value - 1, value + 1, "%", "20 runs"), ()))
        assert judgement.verdict == verdict
        assert ("A mean TTFT error" in advice([judgement])) == (verdict == OVERTURNED)


def test_wrong_words_are_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, fault in ((["kv-rew"], "did you mean 'kv-raw'?"), (["kv-raw", "--page", "p.md"], "--page")):
        assert research_command(["rejudged", *words]) == 2
        err = capsys.readouterr().err
        assert fault in err and err.count("\n") == 1
