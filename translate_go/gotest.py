"""name_test.go: batches and prompts with the times recorded from the plain interpreter, and a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from translate_go.behaviour import behaviour_tests
from translate_go.constructors import constructor, options_literal
from translate_go.deployment import EXAMPLE, Deployment, by_name
from translate_go.literals import curve_notice, deployment_literal
from translate_go.naming import BackendName
from translate_go.refusals import refusal_tests
from translate_go.spelling import MARK, quoted
from translate_go.target import EmitPlan
from translate_go.vectors import EDGES, LIBRARY, PROMPTS, Batch, batches, overhead_ticks, step_ticks, tolerance

RECORDED = 20  # random batches in addition to the edge cases
OF_MANY = (EDGES[4], *EDGES[-4:])  # batches recorded for each of many deployments: a chunk, decodes, mixtures
SEED = 20
WIDTH = 16  # times in a line

_TEMPLATE = """\
// %(mark)s

package latency

import (
%(imports)s

	"github.com/inference-sim/inference-sim/sim"
)

// <name>Tolerance is how far a time may be from the recorded one, in microseconds: 0, or 1 where the program
// calls %(library)s, whose last bit differs between maths libraries.
const <name>Tolerance = %(tolerance)d

// <name>Rows are count equal requests: prompt length, progress before the step, new tokens of the step.
type <name>Rows struct{ count, prompt, progress, tokens int }

var <name>Batches = [][]<name>Rows{
%(batches)s
}

// <name>Prompts are prompt lengths in tokens.
var <name>Prompts = []int{%(prompts)s}

// <name>Records are the recorded times of each model in microseconds: of every batch, of every prompt, and the
// overheads.
var <name>Records = []struct {
	name                       string
	model                      *<Name>
	steps, queueing, overheads []int64
}{
%(records)s
}
%(example)s
// <name>Fill makes a prompt of n tokens, for any type of token.
func <name>Fill[T any](prompt *[]T, n int) {
	*prompt = make([]T, n)
}

func <name>Request(prompt, progress, tokens int) *sim.Request {
	req := &sim.Request{ProgressIndex: int64(progress), NumNewTokens: tokens}
	<name>Fill(&req.InputTokens, prompt)
	return req
}

func <name>Batch(rows []<name>Rows) []*sim.Request {
	var batch []*sim.Request
	for _, row := range rows {
		req := <name>Request(row.prompt, row.progress, row.tokens)
		for i := 0; i < row.count; i++ {
			batch = append(batch, req)
		}
	}
	return batch
}

func <name>Check(t *testing.T, what string, got, want int64) {
	t.Helper()
	if got < want-<name>Tolerance || got > want+<name>Tolerance {
		t.Errorf("%%s: got %%d us, recorded %%d us", what, got, want)
	}
}

func Test<Name>Times(t *testing.T) {
	for _, record := range <name>Records {
		t.Run(record.name, func(t *testing.T) {
			m := record.model
			for i, rows := range <name>Batches {
				<name>Check(t, "StepTime", m.StepTime(<name>Batch(rows)), record.steps[i])
			}
			for i, prompt := range <name>Prompts {
				<name>Check(t, "QueueingTime", m.QueueingTime(<name>Request(prompt, 0, 0)), record.queueing[i])
			}
%(overheads)s
		})
	}
}

func Test<Name>AllocatesNothing(t *testing.T) {
	m := <name>Records[0].model
	batch := []*sim.Request{<name>Request(64, 0, 64), <name>Request(64, 70, 1)}
	if n := testing.AllocsPerRun(10, func() { m.StepTime(batch) }); n != 0 {
		t.Errorf("StepTime allocates %%g times a call", n)
	}
}

// <name>Sink keeps the compiler from dropping the call that is timed.
var <name>Sink int64

// Benchmark<Name>StepTime128 times a step of 128 requests: four in prefill, the others in decode.
func Benchmark<Name>StepTime128(b *testing.B) {
	m := <name>Records[0].model
	var batch []*sim.Request
	for i := 0; i < 128; i++ {
		if i%%32 == 0 {
			batch = append(batch, <name>Request(2000, 512, 512))
		} else {
			batch = append(batch, <name>Request(500+i, 700+4*i, 1))
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		<name>Sink = m.StepTime(batch)
	}
}

func <name>Must(m *<Name>, err error) *<Name> {
	if err != nil {
		panic(err)
	}
	return m
}
%(more)s"""

_ADAPTERS = """
// <name>Adapters is a cost of adapters with one factor for all batches.
type <name>Adapters struct {
	sim.AdapterCost
	factor float64
}

func (a <name>Adapters) StepOverheadFactor([]*sim.Request) float64 {
	return a.factor
}

func Test<Name>AppliesTheCostOfAdapters(t *testing.T) {
	m := *<name>Records[0].model
	for _, rows := range <name>Batches {
		batch := <name>Batch(rows)
		m.options.AdapterCost = nil
		without := m.StepTime(batch)
		for _, factor := range []float64{1, 1.5} {
			m.options.AdapterCost = <name>Adapters{factor: factor}
			if got, want := m.StepTime(batch), int64(float64(without)*factor); got != want {
				t.Errorf("StepTime with factor %%g: got %%d us, want %%d us", factor, got, want)
			}
		}
		if n := testing.AllocsPerRun(10, func() { m.StepTime(batch) }); n != 0 {
			t.Errorf("StepTime with adapters allocates %%g times a call", n)
		}
	}
}
"""


def benchmark_name(name: BackendName) -> str:
    """The Go function that times a step."""
    return f"Benchmark{name.exported}StepTime128"


def recorded_deployments(plan: EmitPlan, deployments: Sequence[Deployment]) -> Sequence[Deployment]:
    """The deployments whose times are recorded: an example if there are none, or if the program reads none."""
    return deployments if plan.differs and deployments else [Deployment("example", EXAMPLE)]


def go_test(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """The text of the test file. Without deployments, the times are those of an example."""
    many = plan.reads_deployment and by_name(deployments)
    cases: Sequence[Batch] = OF_MANY if many else batches(RECORDED, SEED)
    prompts: Sequence[int] = PROMPTS[-2:] if many else PROMPTS
    recorded = recorded_deployments(plan, deployments)
    records = [line for d in recorded for line in _record(plan, d, _model(plan, d, deployments), cases, prompts)]
    open_ = plan.reads_deployment and not deployments
    more = behaviour_tests(plan, recorded) + refusal_tests(plan, deployments)
    if plan.target.adapter_cost:
        more += plan.name.fill(_ADAPTERS) % {}
    packages = [*(package for package in ("math", "strings") if f"{package}." in more), "testing"]
    return plan.name.fill(_TEMPLATE) % {
        "mark": MARK,
        "imports": "\n".join(f'\t"{package}"' for package in packages),
        "tolerance": tolerance(plan.program),
        "library": f"{', '.join(LIBRARY[:-1])} or {LIBRARY[-1]}",
        "batches": "\n".join(f"\t{_rows(batch)}," for batch in cases),
        "prompts": ", ".join(map(str, prompts)),
        "records": "\n".join(records),
        "example": "\n".join(_example(plan)) if open_ else "",
        "overheads": "\n".join(
            f'\t\t\t{plan.name.of("check")}(t, "{method}", m.{method}(), record.overheads[{i}])'
            for i, (method, _) in enumerate(plan.target.overheads)
        ),
        "more": more,
    }


def _model(plan: EmitPlan, deployment: Deployment, deployments: Sequence[Deployment]) -> str:
    """The Go expression for the model of a deployment, or of the example if there are none."""
    if plan.reads_deployment and not deployments:
        options = f", {options_literal(plan, EXAMPLE)}" if plan.options else ""
        call = f"New{plan.name.exported}({plan.name.of('example')}{options})"
    else:
        call = constructor(plan, deployment, deployments)
    return f"{plan.name.of('must')}({call})"


def _record(
    plan: EmitPlan, deployment: Deployment, model: str, cases: Sequence[Batch], prompts: Sequence[int]
) -> list[str]:
    """The recorded times of a model."""
    program, facts = plan.program, deployment.facts
    times = (
        [step_ticks(program, batch, facts) for batch in cases],
        [overhead_ticks(program, "queueing_time", facts, n) for n in prompts],
        [overhead_ticks(program, name, facts) for _, name in plan.target.overheads],
    )
    lines = [f"\t{{{quoted(deployment.name)}, {model},"]
    for numbers in times:
        texts = [str(x) for x in numbers]
        rows = [", ".join(texts[i : i + WIDTH]) for i in range(0, len(texts), WIDTH)]
        if len(rows) == 1:
            lines.append(f"\t\t[]int64{{{rows[0]}}},")
        else:
            lines += ["\t\t[]int64{", *(f"\t\t\t{row}," for row in rows), "\t\t},"]
    return [*lines, "\t},"]


def _example(plan: EmitPlan) -> list[str]:
    """The Go variable of the example deployment."""
    opening, *rest = deployment_literal(plan, EXAMPLE)
    notice = [*curve_notice([EXAMPLE]), "//"] if plan.curves else []
    variable = plan.name.of("example")
    return ["", *notice, f"// {variable} is Mixtral 8x7B on two H100.", f"var {variable} = {opening}", *rest, ""]


def _rows(batch: Batch) -> str:
    """The rows of a batch in Go."""
    return f"{{{', '.join('{' + ', '.join(map(str, row)) + '}' for row in batch)}}}"
