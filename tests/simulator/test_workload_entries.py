"""Loads in an experiments file: every wrong value is refused in one line that names the place and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_tables import HEAD, experiment, written

from simulator.common.errors import InputError
from simulator.serving.digests import data_hash
from simulator.serving.distribution import Distribution, constant
from simulator.serving.experiment import Arrival, Profile, Session, Stage

BASE: dict[str, Any] = {"stages": [{"rate": 5.0, "duration_s": 60}], "prompt_len": 100, "output_len": 20}
SHARED: dict[str, Any] = {"groups": 2, "system_prompt_len": 10, "question_len": 20}
TALK: dict[str, Any] = {"turns": 3, "think_time_s": 10}
TRACE: dict[str, Any] = {"stages": None, "prompt_len": None, "output_len": None, "trace": "t.csv"}
TOKENS = "give a whole number of tokens, or a distribution as {lognormal: {mean: 250, sd: 120}}"
TURNS = "give a whole number of turns, or a distribution as {uniform: {min: 1, max: 8}}"
SECONDS = "give seconds, or a distribution as {lognormal: {mean: 20, sd: 10}}"
FORMS = "give constant, poisson, even, {gamma: {cv: 2}} or {burst: {size: 10}}"
KINDS = "known are constant, uniform, normal, lognormal, empirical"


def stage(**own: Any) -> dict[str, Any]:
    return {"stages": [BASE["stages"][0], BASE["stages"][0] | own]}


def prompts(**of: Any) -> dict[str, Any]:
    return {"prompt_len": None, "shared_prefix": SHARED | of}


# what is given -> the message after `my.yaml: experiment 'x': workload.`
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt_len": [3]}, f"prompt_len must be a whole number, got [3]: {TOKENS}"),
    ({"prompt_len": 2.5}, f"prompt_len must be a whole number, got 2.5: {TOKENS}"),
    ({"prompt_len": 10**8}, f"prompt_len must be <= 10000000, got 100000000: {TOKENS}"),
    ({"prompt_len": {}}, f"prompt_len must name one distribution, got {{}}: {KINDS}"),
    ({"prompt_len": {"lognorm": 3}}, f"prompt_len must name one distribution, got {{'lognorm': 3}}: {KINDS}"),
    ({"prompt_len": {"constant": 2, "normal": 3}}, "prompt_len must name one distribution, got {'constant': 2, 'normal': 3}: "
     + KINDS),
    ({"prompt_len": {"constant": 0}}, f"prompt_len.constant must be >= 1, got 0: {TOKENS}"),
    ({"prompt_len": {"constant": 2.5}}, f"prompt_len.constant must be a whole number, got 2.5: {TOKENS}"),
    ({"prompt_len": {"normal": 3}}, "prompt_len.normal must be a mapping, got 3: give mean, sd, min, max"),
    ({"prompt_len": {"normal": {"mean": 3}}}, "prompt_len.normal.sd is missing: give the standard deviation"),
    ({"prompt_len": {"normal": {"mean": "3", "sd": 1}}}, "prompt_len.normal.mean must be a number, got '3': give the mean"),
    ({"prompt_len": {"normal": {"mean": 3, "sd": 0}}}, "prompt_len.normal.sd must be > 0, got 0: give the standard deviation"),
    ({"prompt_len": {"normal": {"mean": 3, "sd": 1, "median": 3}}}, "prompt_len.normal.median is not a known key: did you mean "
     "'mean'?"),
    ({"prompt_len": {"normal": {"mean": 3, "sd": 1, "min": 5}}}, "prompt_len.normal.mean 3 is not within min and max, 5 to "
     "1e+07: correct one of them"),
    ({"prompt_len": {"normal": {"mean": 1, "sd": 2e6}}}, "prompt_len.normal.sd 2e+06 is more than 1e+06 times the mean, 1: "
     "correct one of them"),
    ({"prompt_len": {"uniform": {"min": 5}}}, "prompt_len.uniform.max is missing: give the largest value"),
    ({"prompt_len": {"uniform": {"min": 5, "max": 4}}}, "prompt_len.uniform.max must be >= 5, got 4: give the largest value"),
    ({"prompt_len": {"uniform": {"min": 0, "max": 4}}}, "prompt_len.uniform.min must be >= 1, got 0: give the least value"),
    ({"prompt_len": {"uniform": {"min": 1.2, "max": 1.4}}}, "prompt_len.uniform.max 1.4 and min 1.2 have no whole number between "
     "them: correct one of them"),
    ({"prompt_len": {"empirical": 3}}, "prompt_len.empirical must be text, got 3: give the file that lists the values"),
    ({"prompt_len": {"empirical": "a\nb.csv"}}, "prompt_len.empirical must be one line without control characters, got "
     "'a\\nb.csv': rename it"),
    ({"prompt_len": {"empirical": "zero.csv"}}, "prompt_len.empirical lists 0 to 5: give values from 1 to 1e+07"),
    ({"output_len": {"uniform": {"min": 5}}}, "output_len.uniform.max is missing: give the largest value"),
    ({"prompt_len_mean": 99.5, "stages": [{"rate": 5, "duration_s": 60}, {"rate": 5, "duration_s": 60, "prompt_len": 9}]},
     "prompt_len_mean is of prompts of one length, and a stage has its own prompt_len: leave it out, and give every stage the lengths "
     "that were observed"),
    ({"prompt_len_mean": 99.5, "prompt_len": {"uniform": {"min": 5, "max": 9}}}, "prompt_len_mean is of prompts of one length: "
     "leave it out, the distribution has a mean"),
    ({"arrival": 7}, f"arrival 7 is not known: {FORMS}"),
    ({"arrival": "gama"}, "arrival 'gama' is not known: did you mean 'gamma'?"),
    ({"arrival": "gamma"}, f"arrival 'gamma' is not known: {FORMS}"),
    ({"arrival": "burst"}, f"arrival 'burst' is not known: {FORMS}"),
    ({"arrival": {"gamma": {"cv": 1}, "burst": {"size": 2}}}, "arrival {'gamma': {'cv': 1}, 'burst': {'size': 2}} is not known: "
     + FORMS),
    ({"arrival": {"gamma": 2}}, "arrival.gamma must be a mapping, got 2: give cv, the coefficient of variation of the gaps"),
    ({"arrival": {"gamma": {"cv": 0}}}, "arrival.gamma.cv must be >= 0.01, got 0: give the gaps' coefficient of variation"),
    ({"arrival": {"gamma": {"cv": 100}}}, "arrival.gamma.cv must be <= 20, got 100: give the gaps' coefficient of variation"),
    ({"arrival": {"gamma": {"sd": 1}}}, "arrival.gamma.sd is not a known key: known are cv"),
    ({"arrival": {"burst": {"size": 0}}}, "arrival.burst.size must be >= 1, got 0: give the requests that arrive at once"),
    ({"arrival": {"burst": {"size": 1.5}}}, "arrival.burst.size must be a whole number, got 1.5: give the requests that arrive "
     "at once"),
    (stage(arrival="poison"), "stages[1].arrival 'poison' is not known: did you mean 'poisson'?"),
    (stage(prompt_len=0), f"stages[1].prompt_len must be >= 1, got 0: {TOKENS}"),
    (stage(output_len={"normal": {"mean": 3}}), "stages[1].output_len.normal.sd is missing: give the standard deviation"),
    (stage(question_len=5), "stages[1].question_len is not a known key: write `workload: {shared_prefix: "
     "{question_len: ...}}`"),
    (stage(rate=0.001), "stages[1].duration_s of 60 s at 0.001 requests/s offers no request: lengthen it"),
    (prompts(prompts_per_group=0), "shared_prefix.prompts_per_group must be >= 1, got 0: give the number of prompts per shared "
     "prefix, or null"),
    (prompts(question_len={"normal": 1}), "shared_prefix.question_len.normal must be a mapping, got 1: give mean, sd, min, max"),
    ({"session": 3}, "session must be a mapping, got 3: give turns and think_time_s"),
    ({"session": {"turns": 3}}, f"session.think_time_s is missing: {SECONDS}"),
    ({"session": {"think_time_s": 3}}, f"session.turns is missing: {TURNS}"),
    ({"session": TALK | {"turns": 2.5}}, f"session.turns must be a whole number, got 2.5: {TURNS}"),
    ({"session": TALK | {"turns": 10_001}}, f"session.turns must be <= 10000, got 10001: {TURNS}"),
    ({"session": TALK | {"think_time_s": -1}}, f"session.think_time_s must be >= 0, got -1: {SECONDS}"),
    ({"session": TALK | {"think_time_s": float("nan")}}, f"session.think_time_s must be finite, got nan: {SECONDS}"),
    ({"session": TALK | {"turn": 1}}, "session.turn is not a known key: did you mean 'turns'?"),
    ({"session": TALK} | prompts(prompts_per_group=4), "shared_prefix.prompts_per_group and session exclude each other: leave it "
     "out: no turn repeats"),
    (prompts(prompts_per_group=4) | stage(prompt_len=900), "shared_prefix.prompts_per_group is of prompts that all stages repeat, "
     "and a stage has its own prompt_len: leave it out, or the stage's prompt_len"),
    ({"session": TALK, "prompt_len_mean": 9}, "prompt_len_mean is of prompts of one length: leave it out, the distribution has a "
     "mean"),
    ({"session": TALK | {"turns": {"lognormal": {"mean": 3, "sd": 3000}}}, "prompt_len": 10**7}, "output_len of 20 and the "
     "prompts make 2.93e+11 tokens, at most 1e+11 are replayed: shorten the stages, the prompts or the answers"),
    ({"window_s": 5}, "window_s is of a trace alone: leave it out"),
    ({"window_requests": 5}, "window_requests is of a trace alone: leave it out"),
    ({"trace": "t.csv"}, "stages and trace exclude each other: give the one or the other"),
    (TRACE | {"session": TALK}, "session and trace exclude each other: give the one or the other"),
    (TRACE | {"trace": 5}, "trace must be text, got 5: give it as text, in quotes if it looks like a number"),
    (TRACE | {"trace": "a\nb"}, "trace must be one line without control characters, got 'a\\nb': rename it"),
    (TRACE | {"window_s": 0}, "window_s must be > 0, got 0: give seconds"),
    (TRACE | {"window_requests": 1.5}, "window_requests must be a whole number, got 1.5: give a number of requests"),
    (TRACE | {"timeout_s": 0}, "timeout_s must be > 0, got 0: give seconds, or null for none"),
    (TRACE | {"trace": "long.csv", "window_s": 0.001, "window_requests": 1}, "trace is 10,001 windows long, at most 10,000 are "
     "replayed: give a larger window_s"),
]  # fmt: skip


def read(folder: Path, given: dict[str, Any]) -> Any:
    return experiment(folder, {k: v for k, v in (BASE | given).items() if v is not None})


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[m[:50] for _, m in REFUSED])
def test_a_wrong_load_is_refused_in_one_line(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(tmp_path, "t.csv", HEAD + "\n0,10,3\n")
    written(tmp_path, "zero.csv", "len\n0\n5\n")
    if given.get("trace") == "long.csv":
        written(tmp_path, "long.csv", HEAD + "\n" + "".join(f"{i},10,3\n" for i in range(10_002)))
    with pytest.raises(InputError) as caught:
        read(tmp_path, given)
    assert str(caught.value) == f"my.yaml: experiment 'x': workload.{message}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Empty CSV file: correct the file"),
        ("len\n", "must list numbers, one a line below a header: correct it"),
        ("12\n15\n", ":1: is 12: begin with a header, for example len"),
        ("len\n5\nx\n", ":3: len is 'x': give a number that fits"),
        ("len\ninf\n", "must list numbers, one a line below a header: correct it"),
        (b"len\n\xff\n", "give a number that fits"),
    ],
)
def test_a_wrong_list_of_lengths_is_refused_in_one_line(content: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, "lengths.csv", content)
    with pytest.raises(InputError) as caught:
        read(tmp_path, {"output_len": {"empirical": "lengths.csv"}})
    told = str(caught.value)
    assert told.startswith(str(path)) and told.endswith(message) and "\n" not in told


def test_every_form_is_read(tmp_path: Path) -> None:
    written(tmp_path, "lengths.csv", "len\n7\n5\n7\n")
    e = read(tmp_path, {
        "stages": [{"rate": 1.0, "duration_s": 9}, {"rate": 2.0, "duration_s": 9, "arrival": {"burst": {"size": 3}},
                   "prompt_len": {"uniform": {"min": 1, "max": 9}}, "output_len": {"constant": 4}}],
        "arrival": {"gamma": {"cv": 2}}, "prompt_len": None,
        "shared_prefix": SHARED | {"prompts_per_group": None, "question_len": {"normal": {"mean": 9, "sd": 2, "max": 20}}},
        "output_len": {"empirical": "lengths.csv"},
        "session": {"turns": {"uniform": {"min": 1, "max": 4}}, "think_time_s": {"lognormal": {"mean": 9, "sd": 4}}},
    })  # fmt: skip
    most = 1e7
    own = Stage(2.0, 9.0, Arrival("burst", size=3), Distribution("uniform", low=1.0, high=9.0), constant(4))
    assert e.workload.stages == (Stage(1.0, 9.0), own)
    session = Session(
        Distribution("uniform", low=1.0, high=4.0), Distribution("lognormal", mean=9.0, sd=4.0, low=0.0, high=1e9)
    )
    assert e.workload.source == Profile(
        Arrival("gamma", cv=2.0), 2, 0, 10, Distribution("normal", mean=9.0, sd=2.0, low=1.0, high=20.0), None,
        Distribution("empirical", low=1.0, high=most, values=(5.0, 7.0), counted=(1, 2)), session,
    )  # fmt: skip
    assert e.notes == ()


def test_the_data_hash_sees_every_setting_of_a_load(tmp_path: Path) -> None:
    written(tmp_path, "t.csv", HEAD + "\n0,10,3\n1,10,3\n")
    loads: list[dict[str, Any]] = [
        {}, {"prompt_len": {"normal": {"mean": 100, "sd": 5}}}, {"prompt_len": {"normal": {"mean": 100, "sd": 6}}},
        {"arrival": {"gamma": {"cv": 2}}}, {"arrival": {"gamma": {"cv": 3}}}, {"arrival": {"burst": {"size": 3}}},
        {"session": TALK}, {"session": TALK | {"turns": 4}}, stage(), stage(output_len=20), stage(arrival="even"), TRACE,
        TRACE | {"window_s": 5}, TRACE | {"window_requests": 1}, TRACE | {"timeout_s": 5},
    ]  # fmt: skip
    assert len({data_hash([read(tmp_path, given)]) for given in loads}) == len(loads)
    written(tmp_path, "t.csv", HEAD + "\n0,10,3\n1,10,4\n")
    assert data_hash([read(tmp_path, TRACE)]) not in {data_hash([read(tmp_path, given)]) for given in loads[:-4]}
