"""name_test.go: batches and prompts with the times recorded from the plain interpreter, a benchmark, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from translate_go.constructors import constructor, options_literal
from translate_go.deployment import EXAMPLE, Deployment, least
from translate_go.kernel_host import files as kernel
from translate_go.naming import MARK, BackendName, columns, curve_name, fact, import_block, indented, quoted
from translate_go.table import curve_notice, deployment_literal, number_rows
from translate_go.target import MODULE, SCHEMAS, EmitPlan
from translate_go.templates import sections
from translate_go.vectors import EDGES, LIBRARY, PROMPTS, Batch, batches, overhead_ticks, step_ticks, tolerance

_TEXT = sections("tests")
RECORDED = 20  # random batches in addition to the edge cases
OF_MANY = (EDGES[4], *EDGES[-4:])  # batches recorded for each of many deployments: a chunk, decodes, mixtures
SEED = 20
WIDTH = 16  # times in a line
MOST = 8  # deployments whose steps are compared: the first ones, and the first with experts
PREFILLS = (1, 2, 16, 64, 100, 256, 512, 1000, 2048, 4096, 8192)  # tokens of one prompt
DECODES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)  # requests, a token each
PROMPT, PROGRESS = 512, 600  # of the requests in decode


# kind of token -> numbers of them in a step, and the row of a Go batch with n of them
_LADDERS = {
    "prefill": (PREFILLS, f"{{1, {PREFILLS[-1]}, 0, n}}"),
    "decode": (DECODES, f"{{n, {PROMPT}, {PROGRESS}, 1}}"),
}


def benchmark_name(name: BackendName, through: str = "") -> str:
    """The Go function that times a step; `through` "Kernel": by the kernel and its adapter."""
    return f"Benchmark{name.exported}{through}StepTime128"


def go_test(plan: EmitPlan) -> str:
    """The text of the test file. Without deployments, the times are those of an example."""
    name, many = plan.name, plan.reads_deployment and plan.many
    cases: Sequence[Batch] = OF_MANY if many else batches(RECORDED, SEED)
    prompts: Sequence[int] = PROMPTS[-2:] if many else PROMPTS
    tests = [*behaviour_tests(plan), *refusal_tests(plan)]
    if plan.target.main:
        tests.append(name.fill(_TEXT["adapters"]))
    own = [f"{MODULE}/sim"]
    if plan.target.kernel:
        tests.append(kernel.tests(plan))
        own = [f"{SCHEMAS}/kernel", *own]
    more = "\n\n".join(tests)
    overheads = (
        f'{name.of("check")}(t, "{method}", m.{method}(), record.overheads[{i}])'
        for i, (method, _) in enumerate(plan.target.overheads)
    )
    text = name.fill(
        _TEXT["test"],
        mark=MARK,
        package=plan.package,
        imports=import_block(more + _TEXT["test"], ("math", "strings", "testing", "time"), *own),
        tolerance=tolerance(plan.program),
        library=f"{', '.join(LIBRARY[:-1])} or {LIBRARY[-1]}",
        batches=indented(f"{_rows(batch)}," for batch in cases),
        prompts=", ".join(map(str, prompts)),
        records="\n".join(_record(plan, deployment, cases, prompts) for deployment in plan.recorded),
        example=_example(plan) if plan.reads_deployment and not plan.deployments else "",
        overheads=indented(overheads, "\t\t\t"),
    )
    return f"{text}\n\n{more}\n"


def _record(plan: EmitPlan, deployment: Deployment, cases: Sequence[Batch], prompts: Sequence[int]) -> str:
    """The recorded times of a deployment's model, or of the example's if there are none."""
    program, facts = plan.program, deployment.facts
    if plan.reads_deployment and not plan.deployments:
        options = f", {options_literal(plan, EXAMPLE)}" if plan.options else ""
        call = f"New{plan.name.exported}({plan.name.of('example')}{options})"
    else:
        call = constructor(plan, deployment)
    times = (
        [step_ticks(program, batch, facts) for batch in cases],
        [overhead_ticks(program, "queueing_time", facts, n) for n in prompts],
        [overhead_ticks(program, name, facts) for _, name in plan.target.overheads],
    )
    lists = "\n".join(_times(numbers) for numbers in times)
    return f"\t{{{quoted(deployment.name)}, {plan.name.of('must')}({call}),\n{lists}\n\t}},"


def _times(numbers: Sequence[int]) -> str:
    texts = [str(x) for x in numbers]
    if len(texts) <= WIDTH:
        return f"\t\t[]int64{{{', '.join(texts)}}},"
    rows = number_rows(texts, WIDTH, "\t\t\t")
    return f"\t\t[]int64{{\n{rows}\n\t\t}},"


def _example(plan: EmitPlan) -> str:
    variable = plan.name.of("example")
    notice = f"{curve_notice([EXAMPLE])}\n//\n" if plan.curves else ""
    doc = f"{notice}// {variable} is Mixtral 8x7B on two H100."
    return f"\n{doc}\nvar {variable} = {deployment_literal(plan, EXAMPLE)}\n"


def _rows(batch: Batch) -> str:
    return f"{{{', '.join('{' + ', '.join(map(str, row)) + '}' for row in batch)}}}"


def refusal_tests(plan: EmitPlan) -> list[str]:
    """The Go tests that the constructors of this program refuse invalid input, and name it."""
    record = f"{plan.name.of('records')}[0].model"
    options = f", {record}.options" if plan.options else ""
    tests = []
    if any(least(name) > 0.0 for name in plan.facts):
        tests.append(plan.name.fill(_TEXT["facts"], options=options))
    if plan.curves:
        tests.append(plan.name.fill(_TEXT["curves"], options=options, curve=curve_name(plan.curves[0])))
    if plan.host and plan.first and plan.first.config:
        tests.append(plan.name.fill(_TEXT["host"], options=options, config=plan.first.config.literal()))
    elif plan.reads_deployment and plan.many:
        tests.append(plan.name.fill(_TEXT["names"], options=options))
    if plan.settings:
        kind = f"{plan.name.exported}Options"
        rows = [(f'"{plan.target.flags[n]}":', f"func(o *{kind}) {{ o.{fact(n)} = 0 }},") for n in plan.settings]
        deployment = f"{record}.d, " if plan.reads_deployment else ""
        tests.append(plan.name.fill(_TEXT["settings"], settings=columns(rows, "\t\t"), deployment=deployment))
    return tests


def behaviour_tests(plan: EmitPlan) -> list[str]:
    """The Go of these tests."""
    recorded, chosen = plan.recorded, _chosen(plan.recorded)
    overheads = ", ".join(f"m.{method}()" for method, _ in plan.target.overheads)
    parts = [plan.name.fill(_TEXT["positive"], overheads=overheads)]
    grows = ""
    for what, (ladder, row) in _LADDERS.items():
        if falls := _falls(plan, [recorded[i] for i in chosen], what):
            parts.append(plan.name.fill(_TEXT["falls"], what=what, example=falls))
            continue
        words = {"what": what, "What": what.capitalize(), "row": row}
        numbers = {"ladder": ", ".join(map(str, ladder)), "records": ", ".join(map(str, chosen))}
        parts.append(plan.name.fill(_TEXT["grows"], **words, **numbers))
        grows += plan.name.fill("\t<name>Grows<What>(t, name, m)\n", **words)
    experts = [i for i in chosen if _has_experts(recorded[i])]
    if experts and plan.reads_deployment:
        parts.append(plan.name.fill(_TEXT["moe"], record=experts[0], grows=grows))
    return parts


def falling(plan: EmitPlan) -> tuple[str, ...]:
    """A line for prefill and for decode tokens if a step gets shorter with more of them, with an example."""
    compared = [plan.recorded[i] for i in _chosen(plan.recorded)]
    examples = {what: _falls(plan, compared, what) for what in _LADDERS}
    return tuple(
        f"the Go has no test that a step grows with its {what} tokens, because it does not: {example}"
        for what, example in examples.items()
        if example
    )


def _has_experts(deployment: Deployment) -> bool:
    return deployment.facts.get("is_moe", 0.0) > 0


def _chosen(recorded: Sequence[Deployment]) -> list[int]:
    experts = [i for i, deployment in enumerate(recorded) if _has_experts(deployment)]
    return sorted({*range(min(MOST, len(recorded))), *experts[:1]})


def _falls(plan: EmitPlan, deployments: Sequence[Deployment], what: str) -> str:
    """The first step that is shorter than one with fewer tokens, in words; empty if there is none."""
    for deployment in deployments:
        steps = [(n, step_ticks(plan.program, _batch(what, n), deployment.facts)) for n in _LADDERS[what][0]]
        for (fewer, before), (more, after) in pairwise(steps):
            if after < before:
                return f"{deployment.name}, {before} us with {fewer}, {after} us with {more}"
    return ""


def _batch(what: str, n: int) -> Batch:
    return ((1, PREFILLS[-1], 0, n),) if what == "prefill" else ((n, PROMPT, PROGRESS, 1),)
