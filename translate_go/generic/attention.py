"""Attention and all-reduces of measured shapes in Go, as simulator.kernels.attention and allreduce have them.

NEAREST is needed by both kinds of attention.
"""

from __future__ import annotations

NEAREST = """\
// <name>Nearest is the place of the measured shape closest to the wanted one, first in KV heads and width of a head,
// then in heads.
func <name>Nearest(shapes []<name>Heads, wanted <name>Heads) int {
	best, least := -1, [2]float64{}
	for i, s := range shapes {
		far := [2]float64{
			<name>Octaves(s.kvHeads, wanted.kvHeads) + <name>Octaves(s.headDim, wanted.headDim),
			<name>Octaves(s.heads, wanted.heads),
		}
		if best < 0 || far[0] < least[0] || far[0] == least[0] && far[1] < least[1] {
			best, least = i, far
		}
	}
	return best
}

// ownHeads is a GPU's share of a layer's attention.
func (m *<name>Model) ownHeads() <name>Heads {
	return <name>Heads{m.heads / m.tp, max(m.kvHeads/m.tp, 1), m.headDim}
}
"""

DECODE = """\
// decode is a layer's decode attention by requests, in us at the knots: the launch, and a token of context.
func (m *<name>Model) decode() (launch, perToken []float64) {
	at, own := <name>Knots(<name>TokenKnots), m.ownHeads()
	limit := min(own.kvHeads, 8) // in the tables; for more, the part above the launch is scaled
	table := m.tables.decode
	i := <name>Nearest(table.shapes, <name>Heads{max(own.heads*limit/own.kvHeads, 1), limit, own.headDim})
	shape, line := table.shapes[i], table.lines[i]
	batches, starts := <name>Numbers(line.batches, 64), <name>Numbers(line.launch, 64)
	perToken = <name>Interpolate(<name>Logs(at), <name>Logs(batches), <name>Numbers(line.perToken, 64))
	launch = <name>Interpolate(at, batches, starts)
	last := len(batches) - 1
	rate := (starts[last] - starts[last-1]) / (batches[last] - batches[last-1])
	for i, n := range at {
		perToken[i] = perToken[i] * float64(2*own.kvHeads*own.headDim) / float64(2*shape.kvHeads*shape.headDim)
		if n > batches[last] {
			launch[i] = starts[last] + float64(rate*(n-batches[last]))
		}
	}
	return launch, perToken
}
"""

PREFILL = """\
// prefill is a token pair of a layer's prefill attention by prompt length, in us at the knots, without the launch.
func (m *<name>Model) prefill() []float64 {
	at, own := <name>Knots(<name>LengthKnots), m.ownHeads()
	table := m.tables.prefill
	shape := <name>Nearest(table.shapes, own)
	flopsUs := 4 * float64(table.shapes[shape].heads) * float64(table.shapes[shape].headDim) / m.bf16FlopsPerUs
	all, us := <name>Measurements(table.lengths, table.us[shape])
	short := sort.SearchFloat64s(all, 128) // shorter prompts take the time of the launch, whatever their length
	waits := append([]float64(nil), us[:short]...)
	sort.Float64s(waits)
	wait := (waits[(short-1)/2] + waits[short/2]) / 2
	lengths, logs := all[short:], make([]float64, len(all)-short)
	for i, n := range lengths {
		pairs := n * (n + 1) / 2
		logs[i] = math.Log(max(us[short+i]-wait, float64(flopsUs*pairs)) / math.Pow(n, 1.05))
	}
	logs = <name>Monotone(logs) // grows at least with the power 1.05 of the length
	for i, n := range lengths {
		grown := math.Exp(logs[i]) * math.Pow(n, 1.05)
		logs[i] = math.Log(grown / (n * (n + 1) / 2))
	}
	slices.Reverse(logs)
	logs = <name>Monotone(logs) // and at most with its square
	slices.Reverse(logs)
	for i, x := range logs {
		logs[i] = math.Log(math.Exp(x) / flopsUs)
	}
	times := <name>Interpolate(<name>Logs(at), <name>Logs(lengths), logs)
	bound := 4 * float64(own.heads) * float64(own.headDim) / m.bf16FlopsPerUs
	for i, n := range at {
		times[i] = math.Exp(times[i])
		if n < lengths[0] {
			times[i] = math.Exp(logs[0]) * (lengths[0] + 1) / (n + 1)
		}
		times[i] *= bound
	}
	return times
}
"""

ALLREDUCE = """\
// allreduce is one all-reduce of the tokens' activations between the GPUs, in us at the knots; 0 on a single GPU.
func (m *<name>Model) allreduce() []float64 {
	at := <name>Knots(<name>TokenKnots)
	us := make([]float64, len(at))
	if m.tp == 1 {
		return us
	}
	gpus, table := float64(m.tp), m.tables.allreduce
	for i, tokens := range at {
		bytes := tokens * float64(m.hidden) * <name>Activation
		ring := 2 * (gpus - 1) / gpus * bytes / m.linkBytesPerUs
		if len(table.custom)+len(table.nccl) == 0 {
			us[i] = 2 * (<name>LaunchUs + ring)
			continue
		}
		reduce := table.custom
		if len(reduce) == 0 || bytes > 8<<20 && len(table.nccl) > 0 { // larger messages go to NCCL
			reduce = table.nccl
		}
		us[i] = <name>Message(reduce, m.tp, bytes)
		if table.switched && m.tp >= 6 && m.tp <= 8 && bytes > 256<<10 && bytes <= 64<<20 {
			us[i] = <name>Interpolate([]float64{bytes / (1 << 10)}, <name>SwitchedKb, <name>SwitchedUs)[0]
		}
		us[i] = min(us[i], 30+4*ring) // the longest time that is believed
	}
	if len(table.custom)+len(table.nccl) == 0 {
		return us
	}
	return <name>Rising(us)
}

// <name>Message is the time of a message by the measurements for the nearest number of GPUs.
func <name>Message(measured []<name>Reduce, gpus int64, bytes float64) float64 {
	near := measured[0]
	for _, other := range measured[1:] { // in order of GPUs
		if <name>Octaves(other.gpus, gpus) < <name>Octaves(near.gpus, gpus) {
			near = other
		}
	}
	sizes, us := <name>Measurements(near.bytes, near.us)
	us = <name>Rising(us)
	if last := len(sizes) - 1; bytes > sizes[last] {
		return us[last] * bytes / sizes[last]
	}
	return <name>Interpolate([]float64{bytes}, sizes, us)[0]
}

// The reduction in the NVLink switch of eight Hopper GPUs, which the tables do not have: us by kB, from
// vllm-project/vllm, pull request 42324.
var (
	<name>SwitchedKb = []float64{<kb>}
	<name>SwitchedUs = []float64{<us>}
)
"""
