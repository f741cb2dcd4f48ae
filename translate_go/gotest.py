"""evolved_test.go: recorded batches and prompts with the microseconds that the plain interpreter gave, a benchmark."""

from __future__ import annotations

from collections.abc import Mapping

from translate_go.deployment import EXAMPLE, Deployment, least
from translate_go.gotypes import deployment_literal
from translate_go.mark import MARK
from translate_go.plan import Plan
from translate_go.vectors import PROMPTS, Batch, batches, overhead_ticks, step_ticks, tolerance

RECORDED = 20  # random batches beside the edge cases
SEED = 20
BENCHMARK = "BenchmarkEvolvedStepTime128"

_TEMPLATE = """\
// %(mark)s

package latency

import (
	"testing"

	"github.com/inference-sim/inference-sim/sim"
)

// evolvedTolerance is how far a time may be from the recorded one, in microseconds: 0, or 1 where the program
// calls exp, log, log1p or pow, whose last bit differs between maths libraries.
const evolvedTolerance = %(tolerance)d

// evolvedRows are count equal requests: prompt length, progress before the step, new tokens of the step.
type evolvedRows struct{ count, prompt, progress, tokens int }

var evolvedSteps = []struct {
	rows []evolvedRows
	us   int64
}{
%(steps)s
}

var evolvedQueueing = []struct {
	prompt int
	us     int64
}{
%(queueing)s
}

// evolvedFill gives a prompt n tokens, whatever the type of a token.
func evolvedFill[T any](prompt *[]T, n int) {
	*prompt = make([]T, n)
}

func evolvedRequest(prompt, progress, tokens int) *sim.Request {
	req := &sim.Request{ProgressIndex: int64(progress), NumNewTokens: tokens}
	evolvedFill(&req.InputTokens, prompt)
	return req
}

%(model)s

func checkEvolved(t *testing.T, what string, got, want int64) {
	t.Helper()
	if got < want-evolvedTolerance || got > want+evolvedTolerance {
		t.Errorf("%%s: got %%d us, recorded %%d us", what, got, want)
	}
}

func TestEvolvedStepTime(t *testing.T) {
	m := evolvedModel(t)
	for _, step := range evolvedSteps {
		var batch []*sim.Request
		for _, rows := range step.rows {
			req := evolvedRequest(rows.prompt, rows.progress, rows.tokens)
			for i := 0; i < rows.count; i++ {
				batch = append(batch, req)
			}
		}
		checkEvolved(t, "StepTime", m.StepTime(batch), step.us)
	}
}

func TestEvolvedAllocatesNothing(t *testing.T) {
	m := evolvedModel(t)
	batch := []*sim.Request{evolvedRequest(64, 0, 64), evolvedRequest(64, 70, 1)}
	if n := testing.AllocsPerRun(10, func() { m.StepTime(batch) }); n != 0 {
		t.Errorf("StepTime allocates %%g times a call", n)
	}
}

func TestEvolvedOverheads(t *testing.T) {
	m := evolvedModel(t)
	for _, q := range evolvedQueueing {
		checkEvolved(t, "QueueingTime", m.QueueingTime(evolvedRequest(q.prompt, 0, 0)), q.us)
	}
%(overheads)s
}

// evolvedSink keeps the compiler from dropping the call that is timed.
var evolvedSink int64

// %(benchmark)s times a step of 128 requests: four in their prompt, the others decoding.
func %(benchmark)s(b *testing.B) {
	m := evolvedModel(b)
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

_REJECTS = """
func TestEvolvedNeedsItsFacts(t *testing.T) {
	if _, err := NewEvolved(Deployment{}); err == nil {
		t.Error("NewEvolved accepts a deployment without facts")
	}
}
"""


def go_test(plan: Plan, deployment: Deployment | None) -> str:
    """The test file. Without a deployment the times are those of the example's facts."""
    program = plan.program
    facts = {name: float(x) for name, x in (deployment.facts if deployment else EXAMPLE).items()}
    steps = [f"\t{{{_rows(b)}, {step_ticks(program, b, facts)}}}," for b in batches(RECORDED, SEED)]
    queueing = [f"\t{{{n}, {overhead_ticks(program, 'queueing_time', facts, n)}}}," for n in PROMPTS]
    overheads = [
        f'\tcheckEvolved(t, "{method}", m.{method}(), {overhead_ticks(program, name, facts)})'
        for method, name in plan.target.overheads
    ]
    return _TEMPLATE % {
        "mark": MARK,
        "benchmark": BENCHMARK,
        "tolerance": tolerance(program),
        "steps": "\n".join(steps),
        "queueing": "\n".join(queueing),
        "model": "\n".join(_model(plan, deployment, facts)),
        "overheads": "\n".join(overheads),
        "rejects": _REJECTS if any(least(name) > 0.0 for name in plan.facts) else "",
    }


def _model(plan: Plan, deployment: Deployment | None, facts: Mapping[str, float]) -> list[str]:
    """The function that makes the model under test."""
    if not plan.facts or deployment:
        name = f"NewEvolvedFor{deployment.go_name}" if plan.facts and deployment else "NewEvolved"
        return ["func evolvedModel(testing.TB) *Evolved {", f"\treturn {name}()", "}"]
    literal = deployment_literal(plan.facts, facts)
    return [
        "func evolvedModel(t testing.TB) *Evolved {",
        "\tt.Helper()",
        f"\tm, err := NewEvolved({literal[0]}",
        *literal[1:-1],
        f"{literal[-1]})",
        "\tif err != nil {",
        "\t\tt.Fatal(err)",
        "\t}",
        "\treturn m",
        "}",
    ]


def _rows(batch: Batch) -> str:
    return f"[]evolvedRows{{{', '.join('{' + ', '.join(map(str, row)) + '}' for row in batch)}}}" if batch else "nil"
