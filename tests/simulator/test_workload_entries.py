"""Loads in an experiments file: which forms are read, and which values are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from trace_tables import HEAD, experiment, written

from simulator.common.errors import InputError
from simulator.serving.digests import data_hash
from simulator.serving.distribution import Distribution, constant
from simulator.serving.workload import Arrival, Profile, Session, Stage

BASE: dict[str, Any] = {"stages": [{"rate": 5.0, "duration_s": 60}], "prompt_len": 100, "output_len": 20}
SHARED: dict[str, Any] = {"groups": 2, "system_prompt_len": 10, "question_len": 20}
TALK: dict[str, Any] = {"turns": 3, "think_time_s": 10}
TRACE: dict[str, Any] = {"stages": None, "prompt_len": None, "output_len": None, "trace": "t.csv"}


def stage(**own: Any) -> dict[str, Any]:
    return {"stages": [BASE["stages"][0], BASE["stages"][0] | own]}


def prompts(**of: Any) -> dict[str, Any]:
    return {"prompt_len": None, "shared_prefix": SHARED | of}


# what is given, and what the message says after `my.yaml: experiment 'x': workload.`
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt_len": [3]}, "prompt_len must be a whole number, got [3]"),
    ({"prompt_len": 10**8}, "prompt_len must be <= 10000000, got 100000000"),
    ({"prompt_len": {}}, "prompt_len must name one distribution, got {}"),
    ({"prompt_len": {"constant": 2, "normal": 3}}, "prompt_len must name one distribution, got {'constant': 2,"),
    ({"prompt_len": {"constant": 0}}, "prompt_len.constant must be >= 1, got 0"),
    ({"prompt_len": {"normal": 3}}, "prompt_len.normal must be a mapping, got 3: give mean, sd, min, max"),
    ({"prompt_len": {"normal": {"mean": 3}}}, "prompt_len.normal.sd is missing"),
    ({"prompt_len": {"normal": {"mean": "3", "sd": 1}}}, "prompt_len.normal.mean must be a number, got '3'"),
    ({"prompt_len": {"normal": {"mean": 3, "sd": 0}}}, "prompt_len.normal.sd must be > 0, got 0"),
    ({"prompt_len": {"normal": {"mean": 3, "sd": 1, "median": 3}}}, "prompt_len.normal.median is not a known key"),
    ({"prompt_len": {"normal": {"mean": 3, "sd": 1, "min": 5}}}, "prompt_len.normal.mean 3 is not within min and"),
    ({"prompt_len": {"normal": {"mean": 1, "sd": 2e6}}}, "prompt_len.normal.sd 2e+06 is more than 1e+06"),
    ({"prompt_len": {"uniform": {"min": 5}}}, "prompt_len.uniform.max is missing"),
    ({"prompt_len": {"uniform": {"min": 5, "max": 4}}}, "prompt_len.uniform.max must be >= 5, got 4"),
    ({"prompt_len": {"uniform": {"min": 1.2, "max": 1.4}}}, "prompt_len.uniform.max 1.4 and min 1.2 have no whole"),
    ({"prompt_len": {"empirical": 3}}, "prompt_len.empirical must be text, got 3"),
    ({"prompt_len": {"empirical": "a\nb.csv"}}, "prompt_len.empirical must be one line without control characters"),
    ({"prompt_len": {"empirical": "zero.csv"}}, "prompt_len.empirical lists 0 to 5: give values from 1 to 1e+07"),
    ({"prompt_len_mean": 9, "prompt_len": {"uniform": {"min": 5, "max": 9}}}, "prompt_len_mean applies only where all"),
    ({"prompt_len_mean": 99.5} | stage(prompt_len=9), "prompt_len_mean applies only where all prompts have one"),
    ({"prompt_len_mean": 9, "session": TALK}, "prompt_len_mean applies only where all prompts have one length"),
    ({"arrival": 7}, "arrival 7 is not known: give constant, poisson, even, {gamma: {cv: 2}} or {burst: {size: 10}}"),
    ({"arrival": "gama"}, "arrival 'gama' is not known: did you mean 'gamma'?"),
    ({"arrival": "gamma"}, "arrival 'gamma' is not known: give constant"),
    ({"arrival": {"gamma": {"cv": 1}, "burst": {"size": 2}}}, "arrival {'gamma': {'cv': 1}, 'burst': {'size'"),
    ({"arrival": {"gamma": 2}}, "arrival.gamma must be a mapping, got 2"),
    ({"arrival": {"gamma": {"cv": 0}}}, "arrival.gamma.cv must be >= 0.01, got 0"),
    ({"arrival": {"gamma": {"sd": 1}}}, "arrival.gamma.sd is not a known key: known are cv"),
    ({"arrival": {"burst": {"size": 0}}}, "arrival.burst.size must be >= 1, got 0"),
    (stage(arrival="poison"), "stages[1].arrival 'poison' is not known: did you mean 'poisson'?"),
    (stage(output_len={"normal": {"mean": 3}}), "stages[1].output_len.normal.sd is missing"),
    (stage(question_len=5), "stages[1].question_len is not a known key: write `workload: {shared_prefix:"),
    (stage(rate=0.001), "stages[1].duration_s of 60 s at 0.001 requests/s offers no request"),
    (prompts(prompts_per_group=0), "shared_prefix.prompts_per_group must be >= 1, got 0"),
    (prompts(prompts_per_group=10**7), "shared_prefix.prompts_per_group times groups are 2e+07 prompts, at most"),
    (prompts(question_len={"normal": 1}), "shared_prefix.question_len.normal must be a mapping, got 1"),
    (prompts(prompts_per_group=4) | stage(prompt_len=900), "shared_prefix.prompts_per_group repeats the prompts in"),
    (prompts(prompts_per_group=4) | {"session": TALK}, "shared_prefix.prompts_per_group and session exclude each"),
    ({"session": 3}, "session must be a mapping, got 3"),
    ({"session": {"turns": 3}}, "session.think_time_s is missing"),
    ({"session": TALK | {"turns": 10_001}}, "session.turns must be <= 10000, got 10001"),
    ({"session": TALK | {"think_time_s": -1}}, "session.think_time_s must be >= 0, got -1"),
    ({"session": TALK | {"turn": 1}}, "session.turn is not a known key: did you mean 'turns'?"),
    (
        {"session": TALK | {"turns": {"lognormal": {"mean": 3, "sd": 3000}}}, "prompt_len": 10**7},
        "output_len of 20 and the prompts make 2.93e+11 tokens, at most 1e+11 are replayed",
    ),
    ({"window_s": 5}, "window_s applies to a trace only"),
    ({"trace": "t.csv"}, "stages and trace exclude each other"),
    (TRACE | {"session": TALK}, "session and trace exclude each other"),
    (TRACE | {"window_s": 0}, "window_s must be > 0, got 0"),
    (TRACE | {"window_requests": 1.5}, "window_requests must be a whole number, got 1.5"),
    (TRACE | {"timeout_s": 0}, "timeout_s must be > 0, got 0"),
    (
        TRACE | {"trace": "long.csv", "window_s": 0.001, "window_requests": 1},
        "trace has 10,001 windows, at most 10,000",
    ),
]


def read(folder: Path, given: dict[str, Any]) -> Any:
    return experiment(folder, {k: v for k, v in (BASE | given).items() if v is not None})


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[m[:50] for _, m in REFUSED])
def test_a_wrong_load_is_refused_with_place_and_reason(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(tmp_path, "t.csv", HEAD + "\n0,10,3\n")
    written(tmp_path, "zero.csv", "len\n0\n5\n")
    if given.get("trace") == "long.csv":
        written(tmp_path, "long.csv", HEAD + "\n" + "".join(f"{i},10,3\n" for i in range(10_002)))
    with pytest.raises(InputError) as caught:
        read(tmp_path, given)
    told = str(caught.value)
    assert told.startswith(f"my.yaml: experiment 'x': workload.{message}") and "\n" not in told


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
    given = yaml.safe_load("""
        stages: [{rate: 1.0, duration_s: 9}, {rate: 2.0, duration_s: 9, arrival: {burst: {size: 3}},
          prompt_len: {uniform: {min: 1, max: 9}}, output_len: {constant: 4}}]
        arrival: {gamma: {cv: 2}}
        prompt_len: null
        shared_prefix: {question_len: {normal: {mean: 9, sd: 2, max: 20}}}
        output_len: {empirical: lengths.csv}
        session: {turns: {uniform: {min: 1, max: 4}}, think_time_s: {lognormal: {mean: 9, sd: 4}}}""")
    given["shared_prefix"] = SHARED | given["shared_prefix"]
    e = read(tmp_path, given)
    own = Stage(2.0, 9.0, Arrival("burst", size=3), Distribution("uniform", low=1.0, high=9.0), constant(4))
    assert e.workload.stages == (Stage(1.0, 9.0), own)
    thought = Distribution("lognormal", mean=9.0, sd=4.0, low=0.0, high=1e9)
    session = Session(Distribution("uniform", low=1.0, high=4.0), thought)
    question = Distribution("normal", mean=9.0, sd=2.0, low=1.0, high=20.0)
    answer = Distribution("empirical", low=1.0, high=1e7, values=(5.0, 7.0), counted=(1, 2))
    assert e.workload.source == Profile(Arrival("gamma", cv=2.0), 2, 0, 10, question, None, answer, session)
    assert e.notes == ()


def test_the_data_hash_sees_every_setting_of_a_load(tmp_path: Path) -> None:
    written(tmp_path, "t.csv", HEAD + "\n0,10,3\n1,10,3\n")
    loads: list[dict[str, Any]] = [{}, stage(), stage(output_len=20), stage(arrival="even")]
    loads += [{"prompt_len": {"normal": {"mean": 100, "sd": sd}}} for sd in (5, 6)]
    loads += [{"arrival": {"gamma": {"cv": cv}}} for cv in (2, 3)] + [{"arrival": {"burst": {"size": 3}}}]
    loads += [{"session": TALK}, {"session": TALK | {"turns": 4}}]
    loads += [TRACE, TRACE | {"window_s": 5}, TRACE | {"window_requests": 1}, TRACE | {"timeout_s": 5}]
    assert len({data_hash([read(tmp_path, given)]) for given in loads}) == len(loads)
    written(tmp_path, "t.csv", HEAD + "\n0,10,3\n1,10,4\n")
    assert data_hash([read(tmp_path, TRACE)]) not in {data_hash([read(tmp_path, given)]) for given in loads[:-4]}
