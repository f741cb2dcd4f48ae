"""The test that a clone of the host gets besides the emitted ones: the host's own factory makes the backend."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.common.errors import InputError
from translate_go.clone.moved import Backend, Facts
from translate_go.constructors import has_factory, options_literal
from translate_go.deployment import Deployment, by_name, checks_names
from translate_go.gotest import recorded_deployments
from translate_go.gotypes import host_option
from translate_go.guide.command import example_command
from translate_go.spelling import MARK, fact, quoted
from translate_go.table import alike
from translate_go.target import MODULE, EmitPlan

_TEST = """\
// %(mark)s

package latency

import (
%(imports)s

	"%(module)s/sim"
)

func Test<Name>IsRegistered(t *testing.T) {
	coeffs := sim.LatencyCoeffs{AlphaCoeffs: []float64{0, 0, 0}, BetaCoeffs: []float64{0, 0, 0}}
	hw := %(config)s
	hw.Backend = "<registered>"
	m, err := NewLatencyModel(coeffs, hw%(option)s)
	if err != nil {
		t.Fatal(err)
	}
	costly, err := NewLatencyModel(coeffs, hw%(option)s, WithAdapterCost(<name>Adapters{factor: 1.5}))
	if err != nil {
		t.Fatal(err)
	}
	for i, rows := range <name>Batches {
		batch := <name>Batch(rows)
		want := <name>Records[0].model.StepTime(batch)
		if got := m.StepTime(batch); got != want {
			t.Errorf("StepTime of batch %%d: %%d us, want %%d us", i, got, want)
		}
		want = clampToInt64(float64(want) * 1.5)
		if got := costly.StepTime(batch); got != want {
			t.Errorf("StepTime of batch %%d with adapters: %%d us, want %%d us", i, got, want)
		}
	}
%(refused)s}
"""

_NEEDS_SETTINGS = """\
	if _, err := NewLatencyModel(coeffs, hw); err == nil || !strings.Contains(err.Error(), "%(flag)s") {
		t.Errorf("without the engine's settings: %%v", err)
	}
"""

_NEEDS_NAME = """\
	hw.Model = "unknown"
	if _, err := NewLatencyModel(coeffs, hw%(option)s); err == nil {
		t.Error("a model that the backend has not is accepted")
	}
"""


def backend(plan: EmitPlan, deployments: Sequence[Deployment]) -> Backend:
    """What the host has to be told of the program, with its deployments: those that are baked in, or recorded."""
    settings = tuple(fact(name) for name in plan.settings)
    option = "\n".join(host_option(plan)) if settings else ""
    facts: Facts = "host" if plan.host else "table" if by_name(deployments) else "baked"
    return Backend(
        plan.name.registered, plan.name.exported, plan.name.private, example_command(plan, deployments),
        facts if plan.reads_deployment else "none", settings, option,
    )  # fmt: skip


def check_factory(plan: EmitPlan, deployments: Sequence[Deployment]) -> None:
    """Raise InputError unless the emitted files have a factory, which needs a deployment that is clear."""
    if has_factory(plan, deployments):
        same = alike(plan, deployments) if plan.reads_deployment and by_name(deployments) and not plan.host else None
        if same:
            raise InputError(
                f"deployments {same[0].name} and {same[1].name}: the host cannot tell them apart by --model, "
                "--hardware and --tp: leave one of them out"
            )
        return
    if not deployments:
        raise InputError("--into needs a deployment, whose facts the program reads: give --host-facts, --id or --model")
    raise InputError(
        f"--into takes one deployment, or a table of more than eight, not {len(deployments)}: "
        "give --host-facts, or emit each with a --name of its own"
    )


def registered_test(plan: EmitPlan, deployments: Sequence[Deployment]) -> dict[str, str]:
    """The test file, name -> text, for the deployments that are baked in, or recorded if the host gives the facts."""
    recorded = recorded_deployments(plan, deployments)[0]
    option = f", With{plan.name.exported}Options({options_literal(plan, recorded.facts)})" if plan.settings else ""
    named = plan.reads_deployment and checks_names(deployments) and not plan.host
    model, gpu, tp = (recorded.model, recorded.host_gpu, recorded.tp) if named else ("any", "any", 1)
    named_only = f"{{Model: {quoted(model)}, GPU: {quoted(gpu)}, TP: {tp}}}"
    config = recorded.config.literal() if plan.host and recorded.config else f"sim.ModelHardwareConfig{named_only}"
    flag = plan.target.flags[plan.settings[0]] if plan.settings else ""
    refused = _NEEDS_SETTINGS % {"flag": flag} if plan.settings else ""
    refused += _NEEDS_NAME % {"option": option} if named else ""
    text = plan.name.fill(_TEST) % {
        "mark": MARK, "module": MODULE, "config": config, "option": option, "refused": refused,
        "imports": '\t"strings"\n\t"testing"' if "strings." in refused else '\t"testing"',
    }  # fmt: skip
    return {f"{plan.name.stem}_factory_test.go": text}
