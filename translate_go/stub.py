"""As much of BLIS as the generated file touches: enough to build, vet and test it without the host's source."""

from __future__ import annotations

from translate_go.target import Target

MODULE = "github.com/inference-sim/inference-sim"

_SIM = """\
// Package sim stands in for the part of BLIS that a latency model touches.
package sim

{token}// Request is one inference request.
type Request struct {{
	InputTokens   []{type}
	ProgressIndex int64
	NumNewTokens  int
}}

// LatencyModel estimates times in microseconds.
type LatencyModel interface {{
	StepTime(batch []*Request) int64
	QueueingTime(req *Request) int64
{methods}
}}

// LatencyCoeffs are regression coefficients.
type LatencyCoeffs struct {{
	BetaCoeffs  []float64
	AlphaCoeffs []float64
}}

// ModelHardwareConfig names model and hardware.
type ModelHardwareConfig struct {{
	Model string
	GPU   string
	TP    int
}}
"""


def stub(target: Target, token_type: str | None = None) -> dict[str, str]:
    """Files of a module with package sim for the target; `token_type` overrides the type of a prompt's tokens."""
    kind = token_type or target.token_type
    token = "" if kind == "int" else f"// {kind} is a token of a prompt.\ntype {kind} int32\n\n"
    methods = "\n".join(f"\t{name}() int64" for name, _ in target.overheads)
    return {
        "go.mod": f"module {MODULE}\n\ngo 1.21\n",
        "sim/sim.go": _SIM.format(token=token, type=kind, methods=methods),
    }
