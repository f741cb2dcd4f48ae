"""INTEGRATION.md: how the generated backend is registered in BLIS and run there, with the limits of its deployment."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from shlex import quote

from simulator.common.text import inert
from simulator.serving.facts import left_out
from simulator.serving.limits import HOST_ENGINE
from translate_go.constructors import constructor, options_literal
from translate_go.deployment import Deployment
from translate_go.generic.facts import host_options, host_use
from translate_go.naming import clean, columns, fact, joined
from translate_go.refusal import FIELDS, FILE, check_call, check_file
from translate_go.source import host_option
from translate_go.target import BLIS_5_DIFFERS, CONFIG_FIELDS, FORMULAS, HOST_FUNCTIONS, MODULE, THRESHOLD, EmitPlan
from translate_go.templates import sections

_TEXT = sections("integration")
ANY_MODEL = "meta-llama/llama-2-7b-hf"  # for a program that reads no deployment
ANY_BLOCKS = 7403  # KV blocks of 16 tokens of that model on an H100 with 80 GB, from the log of its engine
HORIZON_US = 86_400_000_000  # a day: longer than any trace with its backlog


def integration(plan: EmitPlan, again: str, cautions: Sequence[str], accuracy: Sequence[str]) -> str:
    """The text of the file: the emitted files, and the steps for the target's branch.

    again: the command that emitted it, without the place of the files. cautions: reasons not to rely on it. accuracy:
    the lines of a table.
    """
    if plan.target.kernel:
        return _newest(plan, cautions, accuracy)
    target, name, fill = plan.target, plan.name, plan.name.fill
    files = [f"`{file}`" for file in _files(plan)]
    verb = "are files" if len(files) > 1 else "is one file"
    logger = ", the host's logger" if plan.warns else ""
    about = fill(
        _TEXT["about"], files=f"{joined(files)} {verb}", target=target.name, branch=target.branch, logger=logger
    )
    if target.main:
        functions = joined([f"`{function}`" for function in HOST_FUNCTIONS])
        about += " " + fill(_TEXT["calls"], listed=functions)
    parts = ["# Adding this latency model to BLIS"]
    parts += [_paragraph(f"**Before you use it**: {inert(clean(text))}.") for text in cautions]
    parts.append(_paragraph(about))
    if accuracy:
        parts.append("\n".join(f"    {clean(line)}".rstrip() for line in accuracy))
    if target.main and plan.has_factory:
        parts.append(fill(_TEXT["into"], again=clean(again)))
    elif target.main and len(plan.deployments) > 1:
        parts.append(_paragraph(fill(_TEXT["no_into"], count=len(plan.deployments))))
    parts.append(fill(_TEXT["head"], copied=f"{', '.join(files)} and `{name.file('test')}`"))
    parts += [
        *_choice(plan),
        *_settings(plan),
        *_trees(plan),
        *_ahead(plan),
        *_left_out(plan),
        *steps(plan),
        *_library(plan),
    ]
    return "\n\n".join(parts) + "\n"


def _newest(plan: EmitPlan, cautions: Sequence[str], accuracy: Sequence[str]) -> str:
    """The text of the file for the newest host."""
    fill, kernels = plan.name.fill, sections("kernel_host")
    files = [f"`{file}`" for file in (*_files(plan), *map(plan.name.file, ("kernel", "adapter")))]
    first = plan.first
    assert first, "deployments are baked in"
    steps = fill(
        kernels["steps"],
        copied=f"{', '.join(files)} and `{plan.name.file('test')}`",
        new=constructor(plan, first, options=options_literal(plan, settings_of(first), plan.package)),
        kernel=f"New{plan.name.exported}KernelFor{first.go_name}()",
        deployments=inert(joined([clean(d.name) for d in plan.deployments])),
        first=clean(first.name),
        tp=first.tp,
    )
    settings = joined([f"`{name}`" for name in plan.settings]) if plan.settings else ""
    parts = [
        "# Adding this latency model to BLIS",
        *(_paragraph(f"**Before you use it**: {inert(clean(text))}.") for text in cautions),
        _paragraph(fill(kernels["about"], files=joined(files))),
        _paragraph(kernels["checked"]),
        *(["\n".join(f"    {clean(line)}".rstrip() for line in accuracy)] if accuracy else []),
        steps,
        *([_paragraph(fill(kernels["settings"], listed=settings))] if settings else []),
        *_trees(plan),
        *_ahead(plan),
        *_left_out(plan),
        *_library(plan),
    ]
    return "\n\n".join(parts) + "\n"


def _files(plan: EmitPlan) -> list[str]:
    parts = [""]
    if plan.host:
        parts += ["facts", "kernels", "tables"] if plan.curves else ["facts"]
    elif plan.reads_deployment and plan.deployments and (plan.curves or plan.many):
        parts.append("deployments")
    if plan.batch.forest:
        parts.append("trees")
    return [plan.name.file(part) for part in parts]


def _choice(plan: EmitPlan) -> list[str]:
    fill = plan.name.fill
    if not plan.reads_deployment:
        return [fill(_TEXT["no_facts"])]
    if plan.host:
        return _by_host(plan)
    if plan.first is None:
        parameter, argument = (f", options {plan.name.exported}Options", ", options") if plan.options else ("", "")
        text = fill(_TEXT["open"], parameter=parameter, argument=argument)
        return [text, fill(_TEXT["open_curves"])] if plan.curves else [text]
    count = len(plan.deployments)
    if plan.many:
        file, deployment = plan.name.file("deployments"), clean(plan.first.name.lower())
        text = fill(_TEXT["by_name"], file=file, count=count, deployment=deployment)
    elif count > 1:
        text = fill(_TEXT["several"], count=count, flag=plan.target.selector)
    else:
        check = ", and it returns an error for any other `--model`, `--hardware` or `--tp`"
        text = fill(_TEXT["baked"], deployment=inert(clean(plan.first.name)), check=check if plan.checks_names else "")
    return [_paragraph(text), _TEXT["curves"]] if plan.curves else [_paragraph(text)]


def _by_host(plan: EmitPlan) -> list[str]:
    """The paragraphs on a backend that takes every model and GPU of the host."""
    use, fill = host_use(plan.facts, plan.curves), plan.name.fill
    parts = [_paragraph(fill(_TEXT[section])) for section in ("for_host", "refused")]
    if options := host_options(use, plan.name):
        rows = [f"- `{field}`: {text.removeprefix('// ')}." for field, _, text in options]
        parts += [fill(_TEXT["options"]), "\n".join(rows)]
    return [*parts, _paragraph(fill(_TEXT["tables"]))] if plan.curves else parts


def _settings(plan: EmitPlan) -> list[str]:
    """The paragraphs on the engine's settings that the program reads, if it reads any."""
    if not plan.settings:
        return []
    flags = joined([f"`{fact(setting)}` (`{plan.target.flags[setting]}`)" for setting in plan.settings])
    about = plan.name.fill(_TEXT["settings"], listed=flags)
    if not plan.target.main:
        return [_paragraph(f"{about} Write them where the backend is made, as below.")]
    option = textwrap.indent(host_option(plan).replace("\t", "    "), "    ")
    defaults = f"With{plan.name.exported}Options({options_literal(plan, settings_of(None))})"
    edits = plan.name.fill(_TEXT["by_option"], option=option, held=_held_option(plan), defaults=defaults)
    if derived := [fact(name) for name in plan.settings if name in FORMULAS]:
        text = f"The host has no flag of {joined(derived)}: it is vLLM's default, 2 x `--max-num-seqs`, at most 512."
        about = f"{about} {text}"
    return [_paragraph(f"{about} To pass the values that the command was given:"), edits]


def _held_option(plan: EmitPlan) -> str:
    """The Go of the option that takes the settings from the host's config `cfg`, "" for a program that reads none."""
    if not plan.settings:
        return ""
    held = {name: FORMULAS.get(name, "{}").format(f"cfg.{CONFIG_FIELDS[name][0]}") for name in plan.settings}
    values = ", ".join(f"{fact(name)}: float64({value})" for name, value in held.items())
    return plan.name.fill(f"latency.With<Name>Options(latency.<Name>Options{{{values}}})")


def _trees(plan: EmitPlan) -> list[str]:
    forest = plan.batch.forest
    if forest is None:
        return []
    return [_paragraph(plan.name.fill(_TEXT["trees"], file=plan.name.file("trees"), count=len(forest.trees)))]


def _ahead(plan: EmitPlan) -> list[str]:
    """The paragraph on the step that a request misses, if the time before the queue has a reference step for it."""
    if not plan.reference:
        return []
    text = (
        "`QueueingTime` has a reference step where scheduling is asynchronous: vLLM composes a step as the one before "
        "begins, and the host as it begins. Under load TTFT is right so; on an idle engine it is too long by that step."
    )
    return [_paragraph(text)]


def _left_out(plan: EmitPlan) -> list[str]:
    """The paragraph on parts of the models that no fact counts, if there are any."""
    sentences = left_out((d.name, d.facts) for d in plan.deployments)
    items = [textwrap.fill(f"- {text}.", 118, subsequent_indent="  ", break_long_words=False) for text in sentences]
    return ["The times leave out, for", "\n".join(items)] if items else []


def _library(plan: EmitPlan) -> list[str]:
    """The section with a Go program, for the first of the deployments; for one to fill in where none is baked in."""
    limits, main = limits_of(plan.first), plan.target.main or plan.target.kernel
    version = 0 if main else 1
    rows = [
        (f"{CONFIG_FIELDS['max_num_seqs'][version]}:", f"{limits.max_num_seqs},"),
        (f"{CONFIG_FIELDS['max_num_batched_tokens'][version]}:", f"{limits.max_num_batched_tokens},"),
    ]
    if limits.long_prefill_token_threshold:
        rows.append(("LongPrefillTokenThreshold:", f"{limits.long_prefill_token_threshold},"))
    longest = f"\n\t\tModelHardwareConfig: sim.ModelHardwareConfig{{MaxModelLen: {limits.max_model_len}}},"
    program = plan.name.fill(
        _TEXT["program"],
        model=_model(plan),
        blocks=limits.kv_blocks,
        block=limits.block_size,
        batch=columns(rows, "\t\t\t"),
        longest=longest if main and limits.max_model_len else "",
        imports=_imports(plan),
        store="sim.MustNewKVStoreFromConfig(cfg.KVCacheConfig)"
        if plan.target.kernel
        else "kv.NewKVStore(cfg.KVCacheConfig, cfg.Seed)"
        if main
        else "kv.NewKVStore(cfg.KVCacheConfig)",
        token="sim.TokenID" if main else "int",
    )
    text = plan.name.fill(_TEXT["library"], program=program, package=plan.package)
    return [text] if main else [text, _TEXT["ties"]]


def _imports(plan: EmitPlan) -> str:
    """The host's packages that the program needs, as gofmt sorts them."""
    store = "_ " if plan.target.kernel else ""  # imported so that it registers itself
    packages = {f"{MODULE}/sim": "", f"{MODULE}/sim/kv": store, f"{MODULE}/sim/{plan.package}": ""}
    return "\n".join(f'\t{name}"{path}"' for path, name in sorted(packages.items()))


def _model(plan: EmitPlan) -> str:
    if plan.first:
        return constructor(plan, plan.first, package=plan.package)
    new = f"latency.New{plan.name.exported}"
    arguments = [options_literal(plan, settings_of(None), "latency")] if plan.options else []
    if plan.reads_deployment:
        facts = f"latency.{plan.name.exported}Deployment{{ /* the facts named in {plan.name.file()} */ }}"
        arguments.insert(0, facts)
    return f"{new}({', '.join(arguments)})"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def steps(plan: EmitPlan) -> list[str]:
    """The steps to register the backend on the target's branch, the command that runs it, and its limits."""
    fill, backends = plan.name.fill, _registrations(plan)
    added = [name for name, _ in backends]
    command = (replay_command if plan.target.main else run_command)(plan, added[0])
    whose = "With the host's own defaults: give those of your engine"
    common = {
        "whose": f"With the limits of {inert(clean(plan.first.name))}" if plan.first else whose,
        "command": "\n\n".join([command, *_others(plan, added)]),
        "names": _list_item(f"- `--model` is mandatory. {_selection(plan)}"),
    }
    if not plan.target.main:
        cases = "\n".join(f'if hw.Backend == "{name}" {{\n    return {call}\n}}' for name, call in backends)
        differences = "\n".join(f"- {text}" for text in BLIS_5_DIFFERS)
        return [fill(_TEXT["stepml"], **common, cases=textwrap.indent(cases, " " * 7), differences=differences)]
    cases = "\n".join(_case(plan, name, call) for name, call in backends)
    text = fill(
        _TEXT["main"],
        **common,
        cases=textwrap.indent(cases, " " * 7),
        valid="\n".join(f'       "{name}": true,' for name in added),
        names_expected=", ".join(f'"{n}"' for n in sorted(["roofline", "trained-physics", *added])),
        count=len(added),
        wiring=f"\n{fill(_TEXT['wiring'])}" if plan.host else "",
        sizing=_TEXT["sized"] if plan.host else _TEXT["unsized"],
        offload="" if plan.host else f"{_TEXT['offload']}\n",
        check=FILE,
        checked=textwrap.indent(check_file(FIELDS, _held_option(plan)).rstrip().replace("\t", "    "), " " * 7),
        call=check_call("config", " " * 7).replace("\t", "    "),
    )
    return [text]


def _registrations(plan: EmitPlan) -> list[tuple[str, str]]:
    """Each backend's name in the host, and the Go expression that makes it or returns an error.

    The factory makes the only one. There is one for each deployment if nothing else says which of them is meant.
    """
    if plan.first and not plan.has_factory:
        return [
            (f"{plan.name.registered}-{'-'.join(d.words)}", constructor(plan, d, options=_options(plan, d)))
            for d in plan.deployments
        ]
    options = f", {_options(plan, plan.first)}" if plan.options else ""
    return [(plan.name.registered, f"New{plan.name.exported}Backend(coeffs, hw{options})")]


def _options(plan: EmitPlan, deployment: Deployment | None) -> str:
    """The Go expression of the options where the host makes its backends."""
    if not plan.target.main:
        return options_literal(plan, settings_of(deployment))
    return "options" if plan.settings else f"{plan.name.exported}Options{{AdapterCost: o.adapterCost}}"


def _others(plan: EmitPlan, names: Sequence[str]) -> list[str]:
    """Differences of the command for deployments after the first. `names`: of the registered backends."""
    if len(plan.deployments) < 2:
        return []
    if plan.many:
        return [_TEXT["theirs"]] if plan.host else [_TEXT["theirs"], _TEXT["any"]]
    each = names if len(names) > 1 else [names[0]] * len(plan.deployments)
    lines = [flags(plan, d, name) for d, name in zip(plan.deployments, each, strict=True)]
    return ["With the others give these instead:", textwrap.indent("\n".join(lines[1:]), " " * 4)]


def _case(plan: EmitPlan, name: str, call: str) -> str:
    options = [f"options := o.{plan.name.private}", "options.AdapterCost = o.adapterCost"] if plan.settings else []
    return "\n    ".join([f'case "{name}":', *options, f"return {call}"])


def _selection(plan: EmitPlan) -> str:
    """The part of the host's command that selects the deployment, in words."""
    if plan.host:
        return "The host reads the config.json of that model, and the hardware table's row of `--hardware`."
    if not plan.reads_deployment:
        return "It may be any name: the program reads no deployment."
    if not plan.first:
        return "Your factory gets it, `--hardware` and `--tp` in its `sim.ModelHardwareConfig`."
    if plan.many:
        return "It selects the deployment together with `--hardware` and `--tp`."
    if plan.named:
        return plan.name.fill(_TEXT["checked"])
    return plan.name.fill(_TEXT["unchecked"], flag=plan.target.selector)


def _list_item(text: str) -> str:
    return textwrap.fill(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True, slots=True)
class HostLimits:
    """The limits of an engine. The defaults are the host's own for a backend that it did not build.

    `max_model_len` (tokens) 0 is no limit, `long_prefill_token_threshold` (tokens) 0 is none.
    """

    kv_blocks: int = HOST_ENGINE["total_kv_blocks"]
    block_size: int = HOST_ENGINE["block_size"]
    max_num_seqs: int = HOST_ENGINE["max_num_seqs"]
    max_num_batched_tokens: int = HOST_ENGINE["max_num_batched_tokens"]
    max_model_len: int = HOST_ENGINE["max_model_len"]
    long_prefill_token_threshold: int = HOST_ENGINE["long_prefill_token_threshold"]


def limits_of(deployment: Deployment | None) -> HostLimits:
    """The engine's limits among the deployment's facts; the host's defaults for the others, and without one."""
    if deployment is None:
        return HostLimits()
    facts = deployment.facts
    names = ("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    given = {name: int(facts[name]) for name in names if name in facts}
    limits = HostLimits(**given, long_prefill_token_threshold=deployment.long_prefill_token_threshold)
    return replace(limits, max_model_len=longest(limits.max_model_len, limits.kv_blocks, limits.block_size))


def longest(max_model_len: int, kv_blocks: int, block_size: int) -> int:
    """The `max_model_len` (tokens, 0: no limit) that neither engine nor host refuses: at most the whole KV cache."""
    return min(max_model_len, kv_blocks * block_size)


def settings_of(deployment: Deployment | None) -> dict[str, float]:
    """These limits by the names of the language's fields."""
    limits = limits_of(deployment)
    given = {f.name: float(getattr(limits, f.name)) for f in fields(limits)}
    largest = min(2 * limits.max_num_seqs, 512)
    return given | {
        "cudagraph_capture_max": deployment.facts.get("cudagraph_capture_max", largest) if deployment else largest
    }


def replay_command(plan: EmitPlan, backend: str) -> str:
    """The command of the main branch that replays a trace with the backend of this name, over several lines."""
    limits = limits_of(plan.first)
    return _command(
        f"./blis replay {_model_flags(plan, plan.first)} --latency-model {backend}",
        "--trace-header header.yaml --trace-data trace.csv --results-path results.json",
        *_bounds(plan, limits),
        f"{_longest(plan, limits)} {_threshold(limits)}",
        f"--horizon {HORIZON_US} --cache-signal-delay 0 --snapshot-refresh-interval 0",
    )


def run_command(plan: EmitPlan, backend: str) -> str:
    """The command of the frozen branch that runs a trace with the backend of this name, over several lines."""
    limits = limits_of(plan.first)
    return _command(
        f"./blis run {_model_flags(plan, plan.first)} --latency-backend {backend}",
        "--workload traces --workload-traces-filepath trace.csv --results-path results.json",
        *_bounds(plan, limits),
        f"{_threshold(limits)} --horizon {HORIZON_US}",
    )


def flags(plan: EmitPlan, deployment: Deployment, backend: str) -> str:
    """The flags of a deployment, its backend and its limits on either branch's command line, in one line."""
    limits = limits_of(deployment)
    longest = [_longest(plan, limits)] if plan.target.main else []
    chosen = f"{plan.target.selector} {backend}"
    return " ".join([_model_flags(plan, deployment), chosen, *_bounds(plan, limits), *longest, _threshold(limits)])


def example_command(plan: EmitPlan) -> str:
    """The command of the main branch that runs its own workload with the backend, for the first of the deployments.

    It has that deployment's limits; those that the host computes from the model's configuration are left out, but for
    the KV blocks, which it counts wrong.
    """
    model = _model_flags(plan, plan.first) if plan.first else f"--model {ANY_MODEL}"
    command = f"./blis run {model} --latency-model {plan.name.registered}"
    blocks = plan.target.flags["kv_blocks"]
    if plan.first is None:
        return f"{command} {blocks} {ANY_BLOCKS}"
    limits = limits_of(plan.first)
    if plan.host:
        return _command(command, f"{blocks} {limits.kv_blocks}", indent=2)
    return _command(command, *_bounds(plan, limits), _longest(plan, limits), indent=2)


def _command(*lines: str, indent: int = 6) -> str:
    return f" \\\n{' ' * indent}".join(lines)


def _bounds(plan: EmitPlan, limits: HostLimits) -> list[str]:
    pairs = ("kv_blocks", "block_size"), ("max_num_seqs", "max_num_batched_tokens")
    return [" ".join(f"{plan.target.flags[name]} {getattr(limits, name)}" for name in pair) for pair in pairs]


def _longest(plan: EmitPlan, limits: HostLimits) -> str:
    return f"{plan.target.flags['max_model_len']} {limits.max_model_len}"


def _threshold(limits: HostLimits) -> str:
    return f"{THRESHOLD} {limits.long_prefill_token_threshold}"


def _model_flags(plan: EmitPlan, deployment: Deployment | None) -> str:
    """The flags that name the deployment: all three if the backend finds or checks it by them."""
    if deployment is None:
        return "--model MODEL"
    model = f"--model {quote(clean(deployment.model or deployment.name).lower())}"
    return f"{model} --hardware {quote(clean(deployment.host_gpu))} --tp {deployment.tp}" if plan.named else model
