"""INTEGRATION.md: how the generated backend is registered in BLIS."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from simulator.serving.facts import left_out
from translate_go.constructors import has_factory
from translate_go.deployment import Deployment, by_name, checks_names
from translate_go.generic.facts import host_options, host_use
from translate_go.gotypes import host_option
from translate_go.guide.library import library
from translate_go.guide.steps import steps
from translate_go.spelling import clean, fact
from translate_go.target import CONFIG_FIELDS, HOST_FUNCTIONS, EmitPlan

_HEAD = """\
# Adding this latency model to BLIS
{cautions}
{about}
{accuracy}{into}
1. Copy {copied} to `sim/latency/`.
2. Run `go vet ./sim/latency` and `go test ./sim/latency -run <Name> -bench <Name>`: the test compares recorded
   batches and prompts with the times of the interpreter in which the program was scored, the benchmark times a batch of
   128 requests.
3. Register it, as below. If the host already has a backend called `<registered>`, or another file of the package
   defines a name of `<stem>.go` (`go vet` reports it), emit it again with another `--name`.
"""
_ABOUT = (
    "{files} of package `latency`. The code needs Go 1.21 or later, imports only `sim` and the standard library, keeps "
    "no state between calls, and does not change batch or requests. It was written for target {target} (branch "
    "`{branch}`)."
)
_CALLS = (
    " It calls two functions of the host's own package `latency`, and does not compile in a version of the host "
    "without them: {listed}."
)
_INTO = """
This does all of it in a clone of BLIS, CHECKOUT, on a new branch:

    {again} --into CHECKOUT

Or by hand:
"""
_NO_INTO = (
    "`evolve emit --into`, which does all of it in a clone of BLIS, refuses these {count} deployments: it registers "
    "one backend, and nothing says for which of them. It takes one deployment, a table of more than eight, or none "
    "with `--host-facts`, which serves every deployment of the host. By hand:"
)
_BAKED = (
    "The factory to register is `New<Name>Backend`; the facts of {name} are baked in{check}. The constructor "
    "`New<Name>` takes the facts of any other deployment."
)
_BAKED_CHECKED = ", and it returns an error for any other `--model`, `--hardware` or `--tp`"
_NO_FACTS = """
The factory to register is `New<Name>Backend`. The program reads no facts, so it is the same for all deployments.
"""
_OPEN = """
No deployment is baked in. Write a factory that fills `<Name>Deployment` and calls `New<Name>`:

    func New<Name>Backend(_ sim.LatencyCoeffs, _ sim.ModelHardwareConfig{parameter}) (sim.LatencyModel, error) {{
        return New<Name>(<Name>Deployment{{ /* the facts named in <stem>.go */ }}{argument})
    }}

or emit again for a deployment (an experiment, or model, hardware and tensor parallelism), which adds it.
"""
_OPEN_CURVES = """
The curves of measured kernels are part of `<Name>Deployment`: slices of 113 or 137 knots, in microseconds. `New<Name>`
returns an error that names a curve if it is missing, has the wrong length, or holds a negative or infinite number or
NaN.
"""
_SEVERAL = (
    "{count} deployments are baked in, each with its own constructor. The host passes no more of the model than its "
    "name to a backend that is not built in, so the steps below register a backend for each, and `{flag}` chooses "
    "among them."
)
_BY_NAME = (
    "`{file}` has {count} deployments by name, MODEL/GPU/tpN, for example `{name}`. The factory to register is "
    "`New<Name>Backend`: it selects the deployment by `--model`, `--hardware` and `--tp`, with any name of model and "
    "GPU in `<name>Names`, in upper or lower case. If there is none, the error lists what there is. To "
    "choose one deployment at registration instead, return `New<Name>For` with its name."
)
_SETTINGS = (
    "The program reads settings of the engine, which the host does not pass to its backends: {listed}. The "
    "constructors take them in `<Name>Options`, and return an error that names the flag if one is missing. "
)
_FROM_FLAGS = "To pass the values that the command was given:"
_WRITTEN = "Write them where the backend is made, as below."
_BY_OPTION = """
Add to `sim/latency/latency.go` the field `<name> <Name>Options` in `latencyOptions`, and

{option}

In `sim/cluster/instance.go`, give `latency.NewLatencyModel` one argument more:

    latency.With<Name>Options(latency.<Name>Options{{
{values}
    }})
"""
_CURVES = """
Curves are for one model on one GPU type at one tensor parallelism, and cannot be converted to another deployment. They
derive from tables under the Apache-2.0 licence: keep the source and copyright lines above them.
"""
_LEFT_OUT = """
The times leave out, for

{items}
"""

_FOR_HOST = (
    "The factory to register is `New<Name>Backend`. It serves every `--model`, `--hardware` and `--tp`: the facts "
    "follow from `hw.ModelConfig`, `hw.HWConfig` and `hw.TP`, once, when the model is constructed."
)
_REFUSED = (
    "It returns an error that names model and reason for latent attention (MLA), for hybrids with linear "
    "attention, for data or expert parallelism inside an instance, for a KV cache in other than 16 bits, and for "
    "heads that the GPUs do not split evenly. An MLP has a gate unless `hidden_act` is relu2 or xielu, and "
    "interleaved experts are read as in Llama 4's config.json: a step of 1 means that every layer has experts."
)
_OPTIONS = "The host does not know some things. They are fields of `<Name>Options`, with these defaults:"
_TABLES = (
    "The kernels of `<stem>_kernels.go` are computed from the tables in `<stem>_tables.go`, for the GPUs named "
    "there; another GPU is an error. The tables are under the Apache-2.0 licence: keep the source and copyright "
    "lines above them."
)

_TREES = (
    "`{file}` has the ensemble of {count} trees that the step time reads: their nodes, and the walk through them. It "
    "belongs to this `<stem>.go` and to no other."
)


def integration(
    plan: EmitPlan, deployments: Sequence[Deployment], again: str, cautions: Sequence[str], accuracy: Sequence[str]
) -> str:
    """The text of the file: what was emitted, and the steps for the target's branch.

    again: the command that emitted it, without the place where the files went. cautions: reasons not to rely on it.
    accuracy: the lines of a table.
    """
    target, name = plan.target, plan.name
    names = [f"`{name.source_file}`"]
    if plan.host:
        names.append(f"`{name.facts_file}`")
        names += [f"`{name.kernels_file}`", f"`{name.tables_file}`"] if plan.curves else []
    elif plan.reads_deployment and deployments and (plan.curves or by_name(deployments)):
        names.append(f"`{name.deployments_file}`")
    if plan.batch.forest:
        names.append(f"`{name.trees_file}`")
    files = f"{_together(names)} {'are files' if len(names) > 1 else 'is one file'}"
    calls = _CALLS.format(listed=_together([f"`{name}`" for name in HOST_FUNCTIONS])) if target.host_clamp else ""
    about = _paragraph(_ABOUT.format(files=files, target=target.name, branch=target.branch) + calls)
    copied = f"{', '.join(names)} and `{name.test_file}`"
    possible = target.branch == "main" and has_factory(plan, deployments)
    into = _INTO.format(again=clean(again)) if possible else ""
    if target.branch == "main" and len(deployments) > 1 and not possible:
        into = f"\n{_paragraph(_NO_INTO.format(count=len(deployments)))}\n"
    warned = "".join(f"\n{_paragraph(f'**Before you use it**: {clean(text)}.')}\n" for text in cautions)
    table = "".join(f"    {clean(line).rstrip()}\n" for line in accuracy)
    head = name.fill(_HEAD).format(
        cautions=warned, about=about, accuracy=f"\n{table}" if table else "", into=into, copied=copied
    )
    choice, omissions = _choice(plan, deployments), _left_out(deployments)
    registration = steps(plan, deployments), library(plan, deployments)
    return "".join((head, *choice, *_settings(plan), *_trees(plan), *omissions, *registration))


def _settings(plan: EmitPlan) -> list[str]:
    """The paragraphs on the engine's settings that the program reads."""
    if not plan.settings:
        return []
    listed = _together([f"`{fact(setting)}` (`{plan.target.flags[setting]}`)" for setting in plan.settings])
    about = plan.name.fill(_SETTINGS).format(listed=listed)
    if not plan.target.adapter_cost:
        return [f"\n{_paragraph(about + _WRITTEN)}\n"]
    option = "\n".join(f"    {line}".replace("\t", "    ") for line in host_option(plan))
    values = "\n".join(f"        {fact(name)}: float64(cfg.{CONFIG_FIELDS[name][0]})," for name in plan.settings)
    edits = plan.name.fill(_BY_OPTION).format(option=option, values=values)
    return [f"\n{_paragraph(about + _FROM_FLAGS)}\n", edits]


def _together(names: Sequence[str]) -> str:
    """The names as a sentence lists them."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _trees(plan: EmitPlan) -> list[str]:
    """The paragraph on the ensemble, if the program has one."""
    forest = plan.batch.forest
    return (
        [f"\n{_paragraph(plan.name.fill(_TREES).format(file=plan.name.trees_file, count=len(forest.trees)))}\n"]
        if forest
        else []
    )


def _left_out(deployments: Sequence[Deployment]) -> list[str]:
    """The paragraph on what the models have that no fact counts."""
    sentences = left_out((d.name, d.facts) for d in deployments)
    items = [textwrap.fill(f"- {text}.", 118, subsequent_indent="  ", break_long_words=False) for text in sentences]
    return [_LEFT_OUT.format(items="\n".join(items))] if items else []


def _choice(plan: EmitPlan, deployments: Sequence[Deployment]) -> list[str]:
    """The paragraphs on how the deployment is chosen."""
    fill = plan.name.fill
    if not plan.reads_deployment:
        return [fill(_NO_FACTS)]
    if plan.host:
        return _by_host(plan)
    if not deployments:
        parameter, argument = (f", options {plan.name.exported}Options", ", options") if plan.options else ("", "")
        made = fill(_OPEN).format(parameter=parameter, argument=argument)
        return [made, fill(_OPEN_CURVES)] if plan.curves else [made]
    first = deployments[0]
    if by_name(deployments):
        text = fill(_BY_NAME).format(
            file=plan.name.deployments_file, count=len(deployments), name=clean(first.name.lower())
        )
        parts = [f"\n{_paragraph(text)}\n"]
    elif len(deployments) > 1:
        flag = "--latency-model" if plan.target.branch == "main" else "--latency-backend"
        parts = [f"\n{_paragraph(_SEVERAL.format(count=len(deployments), flag=flag))}\n"]
    else:
        check = _BAKED_CHECKED if checks_names(deployments) else ""
        parts = [f"\n{_paragraph(fill(_BAKED).format(name=clean(first.name), check=check))}\n"]
    return [*parts, _CURVES] if plan.curves else parts


def _by_host(plan: EmitPlan) -> list[str]:
    """The paragraphs on a backend that takes every model and GPU of the host."""
    use, fill = host_use(plan.facts, plan.curves), plan.name.fill
    parts = [f"\n{_paragraph(fill(text))}\n" for text in (_FOR_HOST, _REFUSED)]
    if options := host_options(use, plan.name):
        listed = "\n".join(f"- `{field}`: {text.removeprefix('// ')}." for field, _, text in options)
        parts.append(f"\n{_paragraph(fill(_OPTIONS))}\n\n{listed}\n")
    if plan.curves:
        parts.append(f"\n{_paragraph(fill(_TABLES))}\n")
    return parts


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)
