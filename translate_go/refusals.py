"""Tests of the emitted Go that its constructors refuse what they cannot compute with, and name it."""

from __future__ import annotations

from collections.abc import Sequence

from translate_go.deployment import Deployment, by_name, least
from translate_go.spelling import columns, curve_name, fact
from translate_go.target import EmitPlan

_FACTS_NEEDED = """
func Test<Name>NeedsItsFacts(t *testing.T) {
	if _, err := New<Name>(<Name>Deployment{}%(options)s); err == nil {
		t.Error("New<Name> accepts a deployment without facts")
	}
}
"""

_CURVES_NEEDED = """
func Test<Name>NeedsItsCurves(t *testing.T) {
	d := <name>Records[0].model.d
	n := len(d.%(curve)s)
	negative, unknown := make([]float64, n), make([]float64, n)
	negative[3], unknown[n-1] = -1, math.NaN()
	for _, knots := range [][]float64{nil, make([]float64, n-1), negative, unknown} {
		d.%(curve)s = knots
		if _, err := New<Name>(d%(options)s); err == nil || !strings.Contains(err.Error(), "%(curve)s") {
			t.Errorf("New<Name> with a bad %(curve)s: %%v", err)
		}
	}
}
"""

_NAMES_NEEDED = """
func Test<Name>KnowsItsDeployments(t *testing.T) {
	for name := range <name>Deployments {
		if _, err := New<Name>For(name%(options)s); err != nil {
			t.Error(err)
		}
	}
	for _, names := range <name>Names {
		if <name>Parts(names[0])[2] == "" { // of a model or a GPU alone
			continue
		}
		if _, err := New<Name>For(strings.ToUpper(names[0])%(options)s); err != nil {
			t.Error(err)
		}
	}
	for name := range <name>Deployments { // one character too many
		_, err := New<Name>For(name+"x"%(options)s)
		if err == nil || strings.HasSuffix(err.Error(), "there are ") {
			t.Errorf("New<Name>For should say what there is: %%v", err)
		}
	}
}
"""

_HOST_NEEDED = """
func Test<Name>RefusesWhatItDoesNotCount(t *testing.T) {
	for why, change := range map[string]func(*sim.ModelHardwareConfig){
		"config.json":        func(hw *sim.ModelHardwareConfig) { hw.ModelConfig = sim.ModelConfig{} },
		"latent attention":   func(hw *sim.ModelHardwareConfig) { hw.ModelConfig.KVLoraRank = 512 },
		"data parallelism":   func(hw *sim.ModelHardwareConfig) { hw.DP = 2 },
		"tensor parallelism": func(hw *sim.ModelHardwareConfig) { hw.TP = 0 },
		"evenly":             func(hw *sim.ModelHardwareConfig) { hw.TP = 1000003 },
		"weights of":         func(hw *sim.ModelHardwareConfig) { hw.ModelConfig.WeightBytesPerParam = 0.7 },
	} {
		hw := %(config)s
		change(&hw)
		_, err := New<Name>ForHost(hw%(options)s)
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), hw.Model) {
			t.Errorf("New<Name>ForHost should say %%q: %%v", why, err)
		}
	}
}
"""

_SETTINGS_NEEDED = """
func Test<Name>NeedsTheSettingsOfTheEngine(t *testing.T) {
	for flag, forget := range map[string]func(*<Name>Options){
%(settings)s
	} {
		options := <name>Records[0].model.options
		forget(&options)
		if _, err := New<Name>(%(deployment)soptions); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("New<Name> without %%s: %%v", flag, err)
		}
	}
}
"""


def refusal_tests(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """The Go of those tests that concern this program."""
    wanted = {
        _FACTS_NEEDED: any(least(name) > 0.0 for name in plan.facts),
        _CURVES_NEEDED: bool(plan.curves),
        _NAMES_NEEDED: plan.reads_deployment and by_name(deployments) and not plan.host,
        _HOST_NEEDED: plan.host is not None,
        _SETTINGS_NEEDED: bool(plan.settings),
    }
    first = f"{plan.name.of('records')}[0].model"
    words = {
        "options": f", {first}.options" if plan.options else "",
        "curve": curve_name(plan.curves[0]) if plan.curves else "",
        "deployment": f"{first}.d, " if plan.reads_deployment else "",
        "settings": "\n".join(_forgetting(plan)),
        "config": deployments[0].config.literal() if plan.host and deployments[0].config else "",
    }
    return "".join(plan.name.fill(template) % words for template, concerns in wanted.items() if concerns)


def _forgetting(plan: EmitPlan) -> list[str]:
    """For each setting of the engine its flag, and a function that takes it out of the options."""
    options = f"{plan.name.exported}Options"
    rows = [(f'"{plan.target.flags[n]}":', f"func(o *{options}) {{ o.{fact(n)} = 0 }},") for n in plan.settings]
    return columns(rows, "\t\t")
