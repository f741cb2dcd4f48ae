"""Tests of the emitted Go that ask for what the host asks of a backend: positive times that grow with tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from translate_go.deployment import Deployment
from translate_go.target import EmitPlan
from translate_go.vectors import Batch, step_ticks

MOST = 8  # deployments whose steps are compared: the first ones, and the first with experts
PREFILLS = (1, 2, 16, 64, 100, 256, 512, 1000, 2048, 4096, 8192)  # tokens of one prompt
DECODES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)  # requests, a token each
PROMPT, PROGRESS = 512, 600  # of the requests in decode

_POSITIVE = """
func Test<Name>EmptyBatchTakesAtLeastOneMicrosecond(t *testing.T) {
	for _, record := range <name>Records {
		if got := record.model.StepTime(nil); got < 1 {
			t.Errorf("%%s: StepTime of no request: %%d us", record.name, got)
		}
	}
}

func Test<Name>TimesArePositive(t *testing.T) {
	for _, record := range <name>Records {
		<name>Positive(t, record.name, record.model)
	}
}

func <name>Positive(t *testing.T, name string, m *<Name>) {
	t.Helper()
	for i, rows := range <name>Batches {
		if got := m.StepTime(<name>Batch(rows)); got < 1 {
			t.Errorf("%%s: StepTime of batch %%d: %%d us", name, i, got)
		}
	}
	for _, prompt := range <name>Prompts {
		if got := m.QueueingTime(<name>Request(prompt, 0, 0)); got < 0 {
			t.Errorf("%%s: QueueingTime of %%d tokens: %%d us", name, prompt, got)
		}
	}
	for i, got := range []int64{%(overheads)s} {
		if got < 0 {
			t.Errorf("%%s: overhead %%d: %%d us", name, i, got)
		}
	}
}
"""

_GROWS = """
// <name>Grows%(What)s checks that no step gets shorter with more %(what)s tokens.
func <name>Grows%(What)s(t *testing.T, name string, m *<Name>) {
	t.Helper()
	last := int64(0)
	for _, n := range []int{%(ladder)s} {
		got := m.StepTime(<name>Batch([]<name>Rows{%(row)s}))
		if got < last-2*<name>Tolerance { // either may be off by the tolerance
			t.Errorf("%%s: StepTime of %%d %(what)s tokens: %%d us, of fewer: %%d us", name, n, got, last)
		}
		last = got
	}
}

func Test<Name>GrowsWith%(What)sTokens(t *testing.T) {
	for _, record := range []int{%(records)s} {
		<name>Grows%(What)s(t, <name>Records[record].name, <name>Records[record].model)
	}
}
"""

_FALLS = """
// There is no test that a step grows with its %(what)s tokens, because it does not:
// %(example)s.
"""

_MOE = """
func Test<Name>MoE(t *testing.T) {
	name, m := <name>Records[%(record)d].name, <name>Records[%(record)d].model
	<name>Positive(t, name, m)
%(grows)s}
"""

_KINDS = ("prefill", "decode")


def behaviour_tests(plan: EmitPlan, recorded: Sequence[Deployment]) -> str:
    """The Go of these tests. `recorded` are the deployments in the order of the file's records."""
    chosen = _chosen(recorded)
    overheads = ", ".join(f"m.{method}()" for method, _ in plan.target.overheads)
    parts = [_POSITIVE % {"overheads": overheads}]
    growing = []
    for what in _KINDS:
        words = {"what": what, "What": what.capitalize(), "records": ", ".join(map(str, chosen))}
        falls = _falls(plan, [recorded[i] for i in chosen], what)
        if falls:
            parts.append(_FALLS % {"what": what, "example": falls})
            continue
        prefill = what == "prefill"
        row = f"{{1, {PREFILLS[-1]}, 0, n}}" if prefill else f"{{n, {PROMPT}, {PROGRESS}, 1}}"
        ladder = ", ".join(map(str, PREFILLS if prefill else DECODES))
        parts.append(_GROWS % {**words, "ladder": ladder, "row": row})
        growing.append(f"\t<name>Grows{words['What']}(t, name, m)\n")
    experts = [i for i in chosen if recorded[i].facts.get("is_moe", 0.0) > 0]
    if experts and plan.reads_deployment:
        parts.append(_MOE % {"record": experts[0], "grows": "".join(growing)})
    return plan.name.fill("".join(parts))


def falling(plan: EmitPlan, recorded: Sequence[Deployment]) -> tuple[str, ...]:
    """A line for prefill and for decode tokens if a step gets shorter with more of them, with an example."""
    lines = []
    for what in _KINDS:
        example = _falls(plan, [recorded[i] for i in _chosen(recorded)], what)
        if example:
            lines.append(f"the Go has no test that a step grows with its {what} tokens, because it does not: {example}")
    return tuple(lines)


def _chosen(recorded: Sequence[Deployment]) -> list[int]:
    """The indices of the deployments whose steps are compared."""
    experts = [i for i, d in enumerate(recorded) if d.facts.get("is_moe", 0.0) > 0]
    return sorted({*range(min(MOST, len(recorded))), *experts[:1]})


def _falls(plan: EmitPlan, deployments: Sequence[Deployment], what: str) -> str:
    """The first step that is shorter than one with fewer tokens, in words; empty if there is none."""
    for deployment in deployments:
        steps = [(n, step_ticks(plan.program, batch, deployment.facts)) for n, batch in _ladder(what)]
        for (fewer, before), (more, after) in pairwise(steps):
            if after < before:
                return f"{deployment.name}, {before} us with {fewer}, {after} us with {more}"
    return ""


def _ladder(what: str) -> list[tuple[int, Batch]]:
    """Batches with more and more of these tokens, and how many."""
    if what == "prefill":
        return [(n, ((1, PREFILLS[-1], 0, n),)) for n in PREFILLS]
    return [(n, ((n, PROMPT, PROGRESS, 1),)) for n in DECODES]
