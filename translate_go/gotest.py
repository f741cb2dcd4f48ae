"""evolved_test.go: batches and prompts with the times recorded from the plain interpreter, and a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from translate_go.deployment import EXAMPLE, Deployment, by_name, least
from translate_go.gotypes import constructor, curve_notice, deployment_literal, may_fail
from translate_go.spelling import MARK, curve_name, quoted
from translate_go.target import Plan
from translate_go.vectors import EDGES, PROMPTS, Batch, batches, overhead_ticks, step_ticks, tolerance

RECORDED = 20  # random batches in addition to the edge cases
OF_MANY = (EDGES[4], *EDGES[-4:])  # batches recorded for each of many deployments: a chunk, decodes, mixtures
SEED = 20
WIDTH = 16  # times in a line
BENCHMARK = "BenchmarkEvolvedStepTime128"

_TEMPLATE = """\
// %(mark)s

package latency

import (
%(imports)s

	"github.com/inference-sim/inference-sim/sim"
)

// evolvedTolerance is how far a time may be from the recorded one, in microseconds: 0, or 1 where the program
// calls exp, log, log1p, softplus or pow, whose last bit differs between maths libraries.
const evolvedTolerance = %(tolerance)d

// evolvedRows are count equal requests: prompt length, progress before the step, new tokens of the step.
type evolvedRows struct{ count, prompt, progress, tokens int }

var evolvedBatches = [][]evolvedRows{
%(batches)s
}

// evolvedPrompts are prompt lengths in tokens.
var evolvedPrompts = []int{%(prompts)s}

// evolvedRecords are the recorded times of each model in microseconds: of every batch, of every prompt, and the
// overheads.
var evolvedRecords = []struct {
	name                       string
	model                      *Evolved
	steps, queueing, overheads []int64
}{
%(records)s
}
%(example)s
// evolvedFill makes a prompt of n tokens, for any type of token.
func evolvedFill[T any](prompt *[]T, n int) {
	*prompt = make([]T, n)
}

func evolvedRequest(prompt, progress, tokens int) *sim.Request {
	req := &sim.Request{ProgressIndex: int64(progress), NumNewTokens: tokens}
	evolvedFill(&req.InputTokens, prompt)
	return req
}

func evolvedBatch(rows []evolvedRows) []*sim.Request {
	var batch []*sim.Request
	for _, row := range rows {
		req := evolvedRequest(row.prompt, row.progress, row.tokens)
		for i := 0; i < row.count; i++ {
			batch = append(batch, req)
		}
	}
	return batch
}

func checkEvolved(t *testing.T, what string, got, want int64) {
	t.Helper()
	if got < want-evolvedTolerance || got > want+evolvedTolerance {
		t.Errorf("%%s: got %%d us, recorded %%d us", what, got, want)
	}
}

func TestEvolvedTimes(t *testing.T) {
	for _, record := range evolvedRecords {
		t.Run(record.name, func(t *testing.T) {
			m := record.model
			for i, rows := range evolvedBatches {
				checkEvolved(t, "StepTime", m.StepTime(evolvedBatch(rows)), record.steps[i])
			}
			for i, prompt := range evolvedPrompts {
				checkEvolved(t, "QueueingTime", m.QueueingTime(evolvedRequest(prompt, 0, 0)), record.queueing[i])
			}
%(overheads)s
		})
	}
}

func TestEvolvedAllocatesNothing(t *testing.T) {
	m := evolvedRecords[0].model
	batch := []*sim.Request{evolvedRequest(64, 0, 64), evolvedRequest(64, 70, 1)}
	if n := testing.AllocsPerRun(10, func() { m.StepTime(batch) }); n != 0 {
		t.Errorf("StepTime allocates %%g times a call", n)
	}
}

// evolvedSink keeps the compiler from dropping the call that is timed.
var evolvedSink int64

// %(benchmark)s times a step of 128 requests: four in prefill, the others in decode.
func %(benchmark)s(b *testing.B) {
	m := evolvedRecords[0].model
	var batch []*sim.Request
	for i := 0; i < 128; i++ {
		if i%%32 == 0 {
			batch = append(batch, evolvedRequest(2000, 512, 512))
		} else {
			batch = append(batch, evolvedRequest(500+i, 700+4*i, 1))
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		evolvedSink = m.StepTime(batch)
	}
}
%(rejects)s"""

_MUST = """
func evolvedMust(m *Evolved, err error) *Evolved {
	if err != nil {
		panic(err)
	}
	return m
}
"""

_FACTS_NEEDED = """
func TestEvolvedNeedsItsFacts(t *testing.T) {
	if _, err := NewEvolved(Deployment{}); err == nil {
		t.Error("NewEvolved accepts a deployment without facts")
	}
}
"""

_CURVES_NEEDED = """
func TestEvolvedNeedsItsCurves(t *testing.T) {
	d := evolvedRecords[0].model.d
	n := len(d.%(curve)s)
	negative, unknown := make([]float64, n), make([]float64, n)
	negative[3], unknown[n-1] = -1, math.NaN()
	for _, knots := range [][]float64{nil, make([]float64, n-1), negative, unknown} {
		d.%(curve)s = knots
		if _, err := NewEvolved(d); err == nil || !strings.Contains(err.Error(), "%(curve)s") {
			t.Errorf("NewEvolved with a bad %(curve)s: %%v", err)
		}
	}
}
"""

_NAMES_NEEDED = """
func TestEvolvedKnowsItsDeployments(t *testing.T) {
	for name := range deployments {
		if _, err := NewEvolvedFor(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewEvolvedFor("unknown"); err == nil {
		t.Error("NewEvolvedFor accepts an unknown name")
	}
}
"""


def go_test(plan: Plan, deployments: Sequence[Deployment]) -> str:
    """The text of the test file. Without deployments, the times are those of an example."""
    many = plan.reads_deployment and by_name(deployments)
    cases: Sequence[Batch] = OF_MANY if many else batches(RECORDED, SEED)
    prompts: Sequence[int] = PROMPTS[-2:] if many else PROMPTS
    recorded = deployments if plan.reads_deployment and deployments else [Deployment("example", EXAMPLE)]
    records = [line for d in recorded for line in _record(plan, d, _model(plan, d, deployments), cases, prompts)]
    open_ = plan.reads_deployment and not deployments
    rejects = [_MUST] if open_ or many else []
    rejects += [_FACTS_NEEDED] if any(least(name) > 0.0 for name in plan.facts) else []
    rejects += [_CURVES_NEEDED % {"curve": curve_name(plan.curves[0])}] if plan.curves else []
    rejects += [_NAMES_NEEDED] if many else []
    imports = ["math", "strings", "testing"] if plan.curves else ["testing"]
    return _TEMPLATE % {
        "mark": MARK,
        "imports": "\n".join(f'\t"{name}"' for name in imports),
        "benchmark": BENCHMARK,
        "tolerance": tolerance(plan.program),
        "batches": "\n".join(f"\t{_rows(batch)}," for batch in cases),
        "prompts": ", ".join(map(str, prompts)),
        "records": "\n".join(records),
        "example": "\n".join(_example(plan)) if open_ else "",
        "overheads": "\n".join(
            f'\t\t\tcheckEvolved(t, "{method}", m.{method}(), record.overheads[{i}])'
            for i, (method, _) in enumerate(plan.target.overheads)
        ),
        "rejects": "".join(rejects),
    }


def _model(plan: Plan, deployment: Deployment, deployments: Sequence[Deployment]) -> str:
    """The Go expression for the model of a deployment, or of the example if there are none."""
    if plan.reads_deployment and not deployments:
        return "evolvedMust(NewEvolved(evolvedExample))"
    call = constructor(plan, deployment, deployments)
    return f"evolvedMust({call})" if may_fail(plan, deployments) else call


def _record(
    plan: Plan, deployment: Deployment, model: str, cases: Sequence[Batch], prompts: Sequence[int]
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


def _example(plan: Plan) -> list[str]:
    """The Go variable of the example deployment."""
    opening, *rest = deployment_literal(plan, EXAMPLE)
    notice = [*curve_notice([EXAMPLE]), "//"] if plan.curves else []
    return ["", *notice, "// evolvedExample is Mixtral 8x7B on two H100.", f"var evolvedExample = {opening}", *rest, ""]


def _rows(batch: Batch) -> str:
    """The rows of a batch in Go."""
    return f"{{{', '.join('{' + ', '.join(map(str, row)) + '}' for row in batch)}}}"
