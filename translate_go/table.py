"""The Go file of deployments: a variable each, or a table from which the host chooses by its names of model and GPU."""

from __future__ import annotations

from collections.abc import Sequence

from translate_go.deployment import Deployment, by_name
from translate_go.literals import curve_notice, deployment_literal, deployment_variable
from translate_go.spelling import MARK, clean, comment, quoted
from translate_go.target import Plan

MOST_LISTED = 16  # names that an error lists

_LOOK_UP = """\
// <name>Known is a name as <name>Deployments has it.
func <name>Known(name string) string {
	for _, names := range <name>Names {
		if names[0] == name {
			return names[1]
		}
	}
	return name
}

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

// <name>Others lists deployments of the same model as one that is not there, or else the models that are.
func <name>Others(missing string) string {
	wanted := <name>Parts(missing)[0]
	models, found := map[string]bool{}, map[string]bool{}
	for key := range <name>Deployments {
		model := <name>Parts(key)[0]
		models[model] = true
		if <name>Known(model) == wanted {
			found[key] = true
		}
	}
	if len(found) == 0 {
		found = models
	}
	listed := make([]string, 0, len(found))
	for name := range found {
		listed = append(listed, name)
	}
	sort.Strings(listed)
	if more := len(listed) - <most>; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(listed[:<most>], ", "), more)
	}
	return strings.Join(listed, ", ")
}
""".replace("<most>", str(MOST_LISTED))


def deployments_file(plan: Plan, deployments: Sequence[Deployment]) -> str:
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


def _table(plan: Plan, deployments: Sequence[Deployment]) -> list[str]:
    """The Go lines of the deployments by name, their other names, and the functions that look one up."""
    variable, names = plan.name.of("deployments"), plan.name.of("names")
    lines = [f"// {variable} are by name, in lower case.",
             f"var {variable} = map[string]{plan.name.exported}Deployment{{"]  # fmt: skip
    for d in deployments:
        opening, *rest = deployment_literal(plan, d.facts, "\t", "")
        lines += [f"\t{quoted(d.name.lower())}: {opening}", *rest[:-1], f"{rest[-1]},"]
    others = sorted(_other_names(plan, deployments).items())
    return [
        *lines, "}", "",
        f"// {names} are other names of models and GPUs, the host's among them, and of whole deployments, each with",
        f"// the name in {variable}, in lower case.",
        f"var {names} = [][2]string{{", *(f"\t{{{quoted(other)}, {quoted(name)}}}," for other, name in others), "}", "",
        *plan.name.fill(_LOOK_UP).rstrip().split("\n"),
    ]  # fmt: skip


def alike(plan: Plan, deployments: Sequence[Deployment]) -> tuple[Deployment, Deployment] | None:
    """Two deployments that differ in what the program reads, but are the same model on the same GPUs for the host."""
    firsts: dict[str, Deployment] = {}
    for deployment in deployments:
        first = firsts.setdefault(deployment.place.lower(), deployment)
        if deployment_literal(plan, first.facts) != deployment_literal(plan, deployment.facts):
            return first, deployment
    return None


def _other_names(plan: Plan, deployments: Sequence[Deployment]) -> dict[str, str]:
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
