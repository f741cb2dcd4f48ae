"""Curves of measured kernels in Go, computed from the tables for any model: a port of simulator.kernels.

Each part is written into the file only if the program reads a curve that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.kernels.allreduce import SWITCHED_US
from simulator.schema import CURVES
from translate_go.generic.attention import ALLREDUCE, DECODE, NEAREST, PREFILL
from translate_go.generic.matrices import GEMM, MOE, NUMERIC, ROOFLINE
from translate_go.naming import BackendName
from translate_go.spelling import MARK, camel, digits

_BASE = """\
const (
	<name>LaunchUs    = 3.0 // the shortest kernels in the tables take 2.5 to 5 us
	<name>Activation  = 2.0 // bytes
	<name>Typical     = 0.7 // the efficiency where no measurement is believed
	<name>TokenKnots  = 14  // octaves: 1 to 16,384 tokens or requests in a step
	<name>LengthKnots = 17  // octaves: 1 to 131,072 tokens of a prompt
)

// <name>Knots are the places of a curve's values, eight to an octave.
func <name>Knots(octaves int) []float64 {
	at := make([]float64, 8*octaves+1)
	for i := range at {
		at[i] = math.Ldexp(1+float64(i%8)/8, i/8)
	}
	return at
}

// <name>Rounded rounds a curve to seven significant digits, which differences between maths libraries do not reach. A
// number larger by 2^-40 is rounded, so that they do not decide ties either.
func <name>Rounded(us []float64) []float64 {
	for i, x := range us {
		us[i], _ = strconv.ParseFloat(strconv.FormatFloat(x*(1+0x1p-40), 'g', 7, 64), 64)
	}
	return us
}

// <name>Add adds the time of some calls of a kernel to a curve.
func <name>Add(sum []float64, calls int64, us []float64) {
	for i := range sum {
		sum[i] += float64(float64(calls) * us[i])
	}
}
"""


_CURVES = {
    "gemm": """\
// gemmCurve is the linear layers; each GPU holds its share of the heads and of the feed-forward width.
func (m *<name>Model) gemmCurve() []float64 {
	sum := make([]float64, 8*<name>TokenKnots+1)
	size, attention := float64(m.weightBits)/8, float64(m.attentionBits)/8
	own, kv := m.heads*m.headDim/m.tp, max(m.kvHeads/m.tp, 1)*m.headDim
	<name>Add(sum, m.layers, m.gemm(own+2*kv, m.hidden, attention))
	<name>Add(sum, m.layers, m.gemm(m.hidden, own, attention))
	for _, block := range []struct{ layers, width int64 }{{m.layers - m.moeLayers, m.ffn}, {m.moeLayers, m.sharedFfn}} {
		if block.layers > 0 && block.width > 0 {
			<name>Add(sum, block.layers, m.gemm((m.mlpMatrices-1)*block.width/m.tp, m.hidden, size))
			<name>Add(sum, block.layers, m.gemm(m.hidden, block.width/m.tp, size))
		}
	}
	return <name>Rounded(sum)
}
""",
    "elementwise": """\
// elementwiseCurve is the operations between the matrix products: their bytes at the datasheet's bandwidth, at least a
// launch inside a graph.
func (m *<name>Model) elementwiseCurve() []float64 {
	at := <name>Knots(<name>TokenKnots)
	sum, us := make([]float64, len(at)), make([]float64, len(at))
	own, kv := m.heads*m.headDim/m.tp, max(m.kvHeads/m.tp, 1)*m.headDim
	shared := m.moeLayers
	if m.sharedFfn == 0 {
		shared = 0
	}
	for _, row := range []struct{ calls, scalars int64 }{
		{2 * m.layers, 4 * m.hidden},                           // residual and norm
		{m.layers, 2 * (own + kv)},                             // rotary embedding
		{m.layers, 4 * kv},                                     // KV cache write
		{m.layers - m.moeLayers, m.mlpMatrices * m.ffn / m.tp}, // activation
		{shared, m.mlpMatrices * m.sharedFfn / m.tp},           // activation of the shared expert
	} {
		for i, tokens := range at {
			us[i] = max(tokens*float64(row.scalars)*<name>Activation/m.bytesPerUs, 2)
		}
		<name>Add(sum, row.calls, us)
	}
	return <name>Rounded(sum)
}
""",
    "moe": """\
// moeCurve is the routed experts in 16 bits, else 0.
func (m *<name>Model) moeCurve() []float64 {
	sum := make([]float64, 8*<name>TokenKnots+1)
	if m.moeLayers > 0 && m.weightBits >= 16 {
		<name>Add(sum, m.moeLayers, m.moe())
	}
	return <name>Rounded(sum)
}
""",
    "moe_quantized": """\
// moeQuantizedCurve is the routed experts with quantized weights, else 0.
func (m *<name>Model) moeQuantizedCurve() []float64 {
	sum := make([]float64, 8*<name>TokenKnots+1)
	if m.moeLayers > 0 && m.weightBits < 16 {
		<name>Add(sum, m.moeLayers, m.moe())
	}
	return <name>Rounded(sum)
}
""",
    "router": """\
// routerCurve is the routers, which stay in 16 bits.
func (m *<name>Model) routerCurve() []float64 {
	sum := make([]float64, 8*<name>TokenKnots+1)
	if m.moeLayers > 0 {
		<name>Add(sum, m.moeLayers, m.gemm(m.experts, m.hidden, 2))
	}
	return <name>Rounded(sum)
}
""",
    "allreduce": """\
// allreduceCurve is the all-reduces, two a layer.
func (m *<name>Model) allreduceCurve() []float64 {
	sum := make([]float64, 8*<name>TokenKnots+1)
	<name>Add(sum, 2*m.layers, m.allreduce())
	return <name>Rounded(sum)
}
""",
    "lm_head": """\
// lmHeadCurve is the output projection, which stays in 16 bits.
func (m *<name>Model) lmHeadCurve() []float64 {
	return <name>Rounded(m.gemm(m.vocab/m.tp, m.hidden, 2))
}
""",
    "sampler": """\
// samplerCurve is the sampler, counted in launches and bytes per logit: every rank has the whole vocabulary.
func (m *<name>Model) samplerCurve() []float64 {
	at := <name>Knots(<name>TokenKnots)
	sum, us := make([]float64, len(at)), make([]float64, len(at))
	for _, part := range []struct {
		runs            bool
		launches, bytes float64
	}{{m.sampling.Penalises, 16, 85}, {m.sampling.Sorts, 24, 214}, {true, 10, 46}} {
		if part.runs {
			for i, requests := range at {
				us[i] = part.launches*5 + requests*float64(m.vocab)*part.bytes/m.bytesPerUs/0.5
			}
			<name>Add(sum, 1, us)
		}
	}
	return <name>Rounded(sum)
}
""",
    "decode_launch": """\
// decodeLaunchCurve is decode attention at no context.
func (m *<name>Model) decodeLaunchCurve() []float64 {
	sum := make([]float64, 8*<name>TokenKnots+1)
	launch, _ := m.decode()
	<name>Add(sum, m.layers, launch)
	return <name>Rounded(sum)
}
""",
    "decode_per_token": """\
// decodePerTokenCurve is a token of context of decode attention.
func (m *<name>Model) decodePerTokenCurve() []float64 {
	sum := make([]float64, 8*<name>TokenKnots+1)
	_, perToken := m.decode()
	<name>Add(sum, m.layers, perToken)
	return <name>Rounded(sum)
}
""",
    "prefill_per_pair": """\
// prefillPerPairCurve is a token pair of prefill attention, by prompt length.
func (m *<name>Model) prefillPerPairCurve() []float64 {
	sum := make([]float64, 8*<name>LengthKnots+1)
	<name>Add(sum, m.layers, m.prefill())
	return <name>Rounded(sum)
}
""",
}

_PARTS = {
    "numeric": NUMERIC,
    "roofline": ROOFLINE,
    "gemm": GEMM,
    "moe": MOE,
    "nearest": NEAREST,
    "decode": DECODE,
    "prefill": PREFILL,
    "allreduce": ALLREDUCE,
}

# curve -> the parts that it is computed with
_NEEDS: dict[str, tuple[str, ...]] = {
    "gemm": ("numeric", "roofline", "gemm"),
    "elementwise": (),
    "moe": ("numeric", "roofline", "moe"),
    "moe_quantized": ("numeric", "roofline", "moe"),
    "router": ("numeric", "roofline", "gemm"),
    "allreduce": ("numeric", "allreduce"),
    "lm_head": ("numeric", "roofline", "gemm"),
    "sampler": (),
    "decode_launch": ("numeric", "nearest", "decode"),
    "decode_per_token": ("numeric", "nearest", "decode"),
    "prefill_per_pair": ("numeric", "nearest", "prefill"),
}


def curve_method(curve: str) -> str:
    """The Go method of the model that computes a curve: `lm_head` -> `lmHeadCurve`."""
    return camel(f"{curve}_curve")


def tables_read(curves: Sequence[str]) -> frozenset[str]:
    """The operations whose tables these curves are computed from: gemm, moe, decode, prefill, allreduce."""
    return frozenset(part for curve in curves for part in _NEEDS[curve]) - {"numeric", "roofline", "nearest"}


def kernels_file(name: BackendName, curves: Sequence[str]) -> str:
    """The text of the file with a method for each of these curves."""
    needed = {part for curve in curves for part in _NEEDS[curve]}
    parts = [_BASE, *(_CURVES[c] for c in CURVES if c in curves), *(t for part, t in _PARTS.items() if part in needed)]
    body = "\n".join(parts)
    body = body.replace("<kb>", ", ".join(map(str, SWITCHED_US))).replace(
        "<us>", ", ".join(map(digits, SWITCHED_US.values()))
    )
    imports = "\n".join(
        f'\t"{package}"' for package in ("math", "slices", "sort", "strconv", "strings") if f"{package}." in body
    )
    return name.fill(f"// {MARK}\n\npackage latency\n\nimport (\n{imports}\n)\n\n{body}")
