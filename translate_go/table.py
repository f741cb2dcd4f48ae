"""The Go file of deployments: a variable each, or a table from which the host chooses by its names of model and GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.serving.facts import curve_of
from translate_go.deployment import Deployment, by_name
from translate_go.literals import curve_notice, deployment_literal, deployment_variable
from translate_go.spelling import MARK, clean, comment, quoted
from translate_go.target import EmitPlan

MOST_LISTED = 16  # names that an error lists

_KNOWN = """\
// <name>Known is a name of a model, of a GPU or of a whole deployment as it is called here, in lower case.
func <name>Known(name string) string {
	name = strings.ToLower(name)
	for _, names := range <name>Names {
		if names[0] == name {
			return names[1]
		}
	}
	return name
}
"""
_ABOUT_CHECK = (
    "<name>Refused returns an error if the host was given another model, GPU or tensor parallelism than {name} has. It "
    "takes every name in <name>Names, in upper or lower case, and does not compare what the host was not given."
)
_CHECK = """\
{doc}
func <name>Refused(hw sim.ModelHardwareConfig) error {{
	model, gpu := <name>Known(hw.Model), <name>Known(hw.GPU)
	if (model == "" || model == {model}) && (gpu == "" || gpu == {gpu}) && (hw.TP == 0 || hw.TP == {tp}) {{
		return nil
	}}
	return fmt.Errorf("<registered>: made for %s, not for --model %q --hardware %q --tp %d: give the former, or emit "+
		"a backend for the latter", {made}, hw.Model, hw.GPU, hw.TP)
}}
"""

_LOOK_UP = """\
// <name>Parts are the model, the GPU and the tensor parallelism of MODEL/GPU/tpN, where the model may have slashes.
func <name>Parts(name string) [3]string {
	parts := strings.Split(name, "/")
	last := len(parts) - 1
	if last < 2 {
		return [3]string{name}
	}
	return [3]string{strings.Join(parts[:last-1], "/"), parts[last-1], parts[last]}
}

// <name>Key is the key in <name>Deployments of a deployment's name, or of MODEL/GPU/tpN with any names of model and
// GPU, in upper or lower case. Where there is none, it is the name in lower case with what is known of it replaced.
func <name>Key(name string) string {
	name = strings.ToLower(name)
	if _, ok := <name>Deployments[name]; ok {
		return name
	}
	if parts := <name>Parts(name); parts[2] != "" {
		name = <name>Known(parts[0]) + "/" + <name>Known(parts[1]) + "/" + parts[2]
	}
	return <name>Known(name)
}

// <name>Missing is the error for a deployment that is not there.
func <name>Missing(name string) error {
	var missing []string
	parts := <name>Parts(name)
	if parts[2] != "" && parts[1] == "" {
		missing = append(missing, "--hardware")
	}
	if parts[2] == "tp0" {
		missing = append(missing, "--tp")
	}
	why := fmt.Sprintf("no deployment %q, of --model, --hardware and --tp, among the %d of <stem>_deployments.go",
		name, len(<name>Deployments))
	if len(missing) > 0 {
		why = "give " + strings.Join(missing, " and ") + " too, to select a deployment"
	}
	return fmt.Errorf("<registered>: %s; %s", why, <name>Others(<name>Known(parts[0])))
}

// <name>Others lists the GPUs and tensor parallelisms that there are for a model, or else the models.
func <name>Others(model string) string {
	var places [][3]string
	models, placed := map[string]bool{}, map[string]bool{}
	add := func(name string) bool {
		parts := <name>Parts(name)
		if !strings.HasPrefix(parts[2], "tp") {
			return false
		}
		parts[0], parts[1] = <name>Known(parts[0]), <name>Known(parts[1])
		models[parts[0]] = true
		if parts[0] == model {
			places = append(places, parts)
		}
		return true
	}
	for _, names := range <name>Names {
		placed[names[1]] = add(names[0]) || placed[names[1]]
	}
	for name := range <name>Deployments {
		if !add(name) && !placed[name] {
			models[name] = true
		}
	}
	if len(places) == 0 {
		return "there are " + <name>List(models)
	}
	sort.Slice(places, func(i, j int) bool {
		a, b := places[i], places[j]
		if a[1] != b[1] {
			return a[1] < b[1]
		}
		return len(a[2]) < len(b[2]) || len(a[2]) == len(b[2]) && a[2] < b[2]
	})
	text := "of " + model + " there are"
	for i, place := range places {
		tp := strings.TrimPrefix(place[2], "tp")
		switch {
		case i == 0:
			text += " " + place[1] + " with --tp " + tp
		case place[1] != places[i-1][1]:
			text += "; " + place[1] + " with --tp " + tp
		case place[2] != places[i-1][2]:
			text += ", " + tp
		}
	}
	return text
}

// <name>List lists the first of the names.
func <name>List(names map[string]bool) string {
	listed := make([]string, 0, len(names))
	for name := range names {
		listed = append(listed, name)
	}
	sort.Strings(listed)
	if more := len(listed) - <most>; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(listed[:<most>], ", "), more)
	}
	return strings.Join(listed, ", ")
}
""".replace("<most>", str(MOST_LISTED))


def deployments_file(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """The text of the file of deployments with curves, or of more than get a constructor each."""
    lines = [f"// {MARK}", "", "package latency"]
    if by_name(deployments):
        lines += ["", "import (", '\t"fmt"', '\t"sort"', '\t"strings"', ")"]
    if plan.curves:
        lines += ["", *curve_notice([d.facts for d in deployments])]
    if by_name(deployments):
        return "\n".join([*lines, "", *_table(plan, deployments), ""])
    for d in deployments:
        opening, *rest = deployment_literal(plan, d.facts)
        variable = deployment_variable(plan, d)
        lines += ["", *comment(f"{variable} is {clean(d.name)}."), f"var {variable} = {opening}", *rest]
    return "\n".join([*lines, ""])


def _table(plan: EmitPlan, deployments: Sequence[Deployment]) -> list[str]:
    """The Go lines of the deployments by name, their other names, and the functions that look one up."""
    variable = plan.name.of("deployments")
    lines = [f"// {variable} are by name, in lower case.",
             f"var {variable} = map[string]{plan.name.exported}Deployment{{"]  # fmt: skip
    for d in deployments:
        opening, *rest = deployment_literal(plan, d.facts, "\t", "")
        lines += [f"\t{quoted(d.name.lower())}: {opening}", *rest[:-1], f"{rest[-1]},"]
    look_up = plan.name.fill(_LOOK_UP).rstrip().split("\n")
    return [*lines, "}", "", *_known(plan, deployments), "", *look_up]


def name_check(plan: EmitPlan, deployment: Deployment) -> list[str]:
    """The Go lines of the function that refuses the host's names of any other deployment, and of what it needs."""
    model, gpu = deployment.model.lower(), deployment.hardware.lower()
    check = plan.name.fill(_CHECK).format(
        doc="\n".join(comment(plan.name.fill(_ABOUT_CHECK).format(name=clean(deployment.name)))),
        model=quoted(model), gpu=quoted(gpu), tp=deployment.tp,
        made=quoted(f"--model {clean(model)} --hardware {clean(deployment.host_gpu)} --tp {deployment.tp}"),
    )  # fmt: skip
    return [*_known(plan, [deployment]), "", *check.rstrip().split("\n")]


def _known(plan: EmitPlan, deployments: Sequence[Deployment]) -> list[str]:
    """The Go lines of other names of the deployments, and of the function that replaces them."""
    others = sorted(_other_names(plan, deployments).items())
    return [
        *comment(
            f"{plan.name.of('names')} are other names of models and GPUs, the host's among them, and of whole "
            "deployments, each with the one that is used here, in lower case."
        ),
        f"var {plan.name.of('names')} = [][2]string{{",
        *(f"\t{{{quoted(other)}, {quoted(name)}}}," for other, name in others), "}", "",
        *plan.name.fill(_KNOWN).rstrip().split("\n"),
    ]  # fmt: skip


def alike(plan: EmitPlan, deployments: Sequence[Deployment]) -> tuple[Deployment, Deployment] | None:
    """Two deployments that differ in what the program reads, but are the same model on the same GPUs for the host."""
    firsts: dict[str, Deployment] = {}
    for deployment in deployments:
        first = firsts.setdefault(deployment.place.lower(), deployment)
        if first is not deployment and _read(plan, first.facts) != _read(plan, deployment.facts):
            return first, deployment
    return None


def _read(plan: EmitPlan, facts: Mapping[str, float]) -> tuple[list[float], list[list[float]]]:
    """What the program reads of a deployment: facts, and curves."""
    return [facts[name] for name in plan.facts], [curve_of(facts, name).tolist() for name in plan.curves]


def _other_names(plan: EmitPlan, deployments: Sequence[Deployment]) -> dict[str, str]:
    """Other name -> name in the table, in lower case, of models, GPUs and MODEL/GPU/tpN, if that is not ambiguous."""
    names: dict[str, str] = {}
    places: dict[str, list[Deployment]] = {}
    for d in deployments:
        names |= {other.lower(): d.model.lower() for other in d.model_names}
        names |= {other.lower(): d.hardware.lower() for other in d.gpu_names}
        if d.model and d.hardware:
            places.setdefault(d.place.lower(), []).append(d)
    names |= {place: there[0].name.lower() for place, there in places.items() if not alike(plan, there)}
    return {other: name for other, name in names.items() if other != name}
