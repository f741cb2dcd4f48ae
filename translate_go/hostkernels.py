"""Curves of measured kernels in Go, computed from the tables for any model: a port of simulator.kernels.

Each part is written into the file only if the program reads a curve that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.kernels.allreduce import SWITCHED_US
from simulator.schema import CURVES
from translate_go.naming import Name
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

_ROOFLINE = """\
// <name>Bound is the time that the datasheet allows a kernel, in us, its launch included.
func (m *<name>Model) bound(moved, flops, weightBytes float64) float64 {
	peak := m.bf16FlopsPerUs
	if weightBytes == 1 && m.fp8FlopsPerUs > 0 {
		peak = m.fp8FlopsPerUs
	}
	return <name>LaunchUs + max(moved/m.bytesPerUs, flops/peak)
}

// <name>Efficiency is the efficiency, bound over time, at sizes at of a kernel that took us at tokens. It is false
// where fewer than half of the measurements are between 0.8 and 4 times the bound; the others are left out.
func <name>Efficiency(at, tokens, us, bound []float64) ([]float64, bool) {
	var sizes, shares []float64
	for i := range us {
		if ratio := us[i] / bound[i]; ratio >= 0.8 && ratio <= 4 {
			sizes, shares = append(sizes, tokens[i]), append(shares, 1/ratio)
		}
	}
	if len(sizes) == 0 || 2*len(sizes) < len(us) {
		return nil, false
	}
	return <name>Interpolate(<name>Logs(at), <name>Logs(sizes), shares), true
}
"""

_NUMERIC = """\
// <name>Octaves is the distance of two sizes in powers of 2, to nine digits, so that ties are the same everywhere.
func <name>Octaves(a, b int64) float64 {
	return math.Round(math.Abs(math.Log2(float64(a)/float64(b)))*1e9) / 1e9
}

func <name>Logs(xs []float64) []float64 {
	logs := make([]float64, len(xs))
	for i, x := range xs {
		logs[i] = math.Log(x)
	}
	return logs
}

// <name>Interpolate is the line through (xs, ys) at these places, with the first and last value outside.
func <name>Interpolate(at, xs, ys []float64) []float64 {
	values := make([]float64, len(at))
	for i, x := range at {
		last := len(xs) - 1
		switch j := sort.SearchFloat64s(xs, x); {
		case j == 0:
			values[i] = ys[0]
		case j > last:
			values[i] = ys[last]
		case xs[j] == x:
			values[i] = ys[j]
		default:
			slope := (ys[j] - ys[j-1]) / (xs[j] - xs[j-1])
			values[i] = float64(slope*(x-xs[j-1])) + ys[j-1]
		}
	}
	return values
}

// <name>Monotone is the closest sequence that never falls (pooling of neighbours that fall).
func <name>Monotone(xs []float64) []float64 {
	means, counts := make([]float64, 0, len(xs)), make([]int, 0, len(xs))
	for _, x := range xs {
		mean, count := x, 1
		for n := len(means); n > 0 && means[n-1] >= mean; n = len(means) {
			before := counts[n-1]
			mean = (float64(means[n-1]*float64(before)) + float64(mean*float64(count))) / float64(before+count)
			count += before
			means, counts = means[:n-1], counts[:n-1]
		}
		means, counts = append(means, mean), append(counts, count)
	}
	values := make([]float64, 0, len(xs))
	for i, mean := range means {
		for n := 0; n < counts[i]; n++ {
			values = append(values, mean)
		}
	}
	return values
}

// <name>Rising is the closest curve that never falls, in logarithms, because tables are noisy.
func <name>Rising(us []float64) []float64 {
	values := <name>Monotone(<name>Logs(us))
	for i, x := range values {
		values[i] = math.Exp(x)
	}
	return values
}

// <name>Numbers are the numbers of a row, with 32 bits those of latencies.
func <name>Numbers(row string, bits int) []float64 {
	var numbers []float64
	for _, field := range strings.Fields(row) {
		x, err := strconv.ParseFloat(field, bits)
		if err != nil {
			panic(err) // a row of this package cannot be wrong
		}
		numbers = append(numbers, x)
	}
	return numbers
}

// <name>Measurements are the pairs of a row of a table, where 0 means not measured.
func <name>Measurements(tokens, row string) ([]float64, []float64) {
	var sizes, us []float64
	at := <name>Numbers(tokens, 64)
	for i, x := range <name>Numbers(row, 32) {
		if x > 0 {
			sizes, us = append(sizes, at[i]), append(us, x)
		}
	}
	return sizes, us
}
"""

_GEMM = """\
// gemm is the time of a matrix product from width k to width n, in us at the knots: the datasheet's bound over the
// efficiency of the measured shapes around it, interpolated in log n and log k.
func (m *<name>Model) gemm(n, k int64, weightBytes float64) []float64 {
	n, k = max(n, 1), max(k, 1)
	at := <name>Knots(<name>TokenKnots)
	here := m.gemmBound(at, n, k, weightBytes)
	tables := []*<name>Gemms{m.tables.gemm}
	if weightBytes == 1 {
		tables = []*<name>Gemms{m.tables.gemmFp8, m.tables.gemm}
	}
	for _, table := range tables {
		if table == nil {
			continue
		}
		total, mean := 0.0, make([]float64, len(at))
		for _, a := range <name>Bracket(table, n, func(s <name>Gemm) int64 { return s.n }) {
			for _, b := range <name>Bracket(table, k, func(s <name>Gemm) int64 { return s.k }) {
				weight := a.weight * b.weight
				if !(weight > 0) {
					continue
				}
				if share, ok := m.gemmEfficiency(at, table, a.size, b.size); ok {
					total += weight
					for i := range mean {
						mean[i] += float64(weight * share[i])
					}
				}
			}
		}
		if total > 0 {
			for i := range mean {
				here[i] /= mean[i] / total
			}
			return <name>Rising(here)
		}
		near := append([]<name>Gemm(nil), table.shapes...)
		sort.SliceStable(near, func(i, j int) bool {
			return <name>Octaves(near[i].n, n)+<name>Octaves(near[i].k, k) <
				<name>Octaves(near[j].n, n)+<name>Octaves(near[j].k, k)
		})
		for _, shape := range near[:min(20, len(near))] {
			if share, ok := m.gemmEfficiency(at, table, shape.n, shape.k); ok {
				for i := range here {
					here[i] /= share[i]
				}
				return <name>Rising(here)
			}
		}
	}
	for i := range here {
		here[i] /= <name>Typical
	}
	return here
}

func (m *<name>Model) gemmBound(tokens []float64, n, k int64, size float64) []float64 {
	bound := make([]float64, len(tokens))
	for i, t := range tokens {
		moved := float64(float64(n*k)*size) + float64(t*float64(n+k)*<name>Activation)
		bound[i] = m.bound(moved, 2*t*float64(n)*float64(k), size)
	}
	return bound
}

// gemmEfficiency is that of a measured shape, false where there is none or its measurements are not believed.
func (m *<name>Model) gemmEfficiency(at []float64, table *<name>Gemms, n, k int64) ([]float64, bool) {
	for _, shape := range table.shapes {
		if shape.n == n && shape.k == k {
			tokens, us := <name>Measurements(table.tokens, shape.us)
			return <name>Efficiency(at, tokens, <name>Rising(us), m.gemmBound(tokens, n, k, table.weightBytes))
		}
	}
	return nil, false
}

type <name>Weighted struct {
	size   int64
	weight float64
}

// <name>Bracket is the two measured widths around a width, with their weights in an interpolation of the logarithms.
func <name>Bracket(table *<name>Gemms, size int64, width func(<name>Gemm) int64) [2]<name>Weighted {
	var grid []int64
	for _, shape := range table.shapes {
		grid = append(grid, width(shape))
	}
	sort.Slice(grid, func(i, j int) bool { return grid[i] < grid[j] })
	size = min(max(size, grid[0]), grid[len(grid)-1])
	low, high := grid[0], grid[len(grid)-1]
	for _, x := range grid {
		if x > size {
			high = x
			break
		}
		if x < high {
			low = x
		}
	}
	share := 0.0
	if high != low {
		share = math.Log(float64(size)/float64(low)) / math.Log(float64(high)/float64(low))
	}
	return [2]<name>Weighted{{low, 1 - share}, {high, share}}
}
"""

_MOE = """\
// moe is the time of a layer's routed experts on a GPU, in us at the knots: the datasheet's bound for the experts that
// random tokens touch, over the efficiency of the nearest measured shape.
func (m *<name>Model) moe() []float64 {
	at, size := <name>Knots(<name>TokenKnots), float64(m.weightBits)/8
	wanted := <name>Experts{hidden: m.hidden, ffn: max(m.moeFfn/m.tp, 1), experts: m.experts, active: m.active}
	here := m.moeBound(at, wanted, size, false)
	tables := []*<name>Moes{m.tables.moe}
	if size == 1 {
		tables = []*<name>Moes{m.tables.moeFp8Block, m.tables.moeFp8, m.tables.moe}
	}
	for _, table := range tables {
		if table == nil {
			continue
		}
		near := append([]<name>Experts(nil), table.shapes...)
		distance := func(s <name>Experts) float64 {
			return <name>Octaves(s.hidden, wanted.hidden) + <name>Octaves(s.ffn, wanted.ffn) +
				<name>Octaves(s.experts, wanted.experts) + <name>Octaves(s.active, wanted.active)
		}
		sort.SliceStable(near, func(i, j int) bool { return distance(near[i]) < distance(near[j]) })
		for _, shape := range near[:min(10, len(near))] {
			tokens, us := <name>Measurements(table.tokens, shape.us)
			if shape.again != "" { // measured twice: the geometric mean
				_, again := <name>Measurements(table.tokens, shape.again)
				for i, x := range again {
					us[i] = math.Exp((math.Log(us[i]) + math.Log(x)) / 2)
				}
			}
			bound := m.moeBound(tokens, shape, table.weightBytes, table.even)
			if share, ok := <name>Efficiency(at, tokens, <name>Rising(us), bound); ok {
				for i := range here {
					here[i] /= share[i]
				}
				return <name>Rising(here)
			}
		}
	}
	for i := range here {
		here[i] /= <name>Typical
	}
	return here
}

// moeBound is for tokens spread evenly over the experts, or at random.
func (m *<name>Model) moeBound(tokens []float64, s <name>Experts, size float64, even bool) []float64 {
	hidden, ffn, experts, active := float64(s.hidden), float64(s.ffn), float64(s.experts), float64(s.active)
	bound := make([]float64, len(tokens))
	for i, t := range tokens {
		touched := experts * (1 - math.Pow(1-active/experts, t))
		if even {
			touched = min(active*t, experts)
		}
		moved := float64(touched*3*hidden*ffn*size) + float64(t*active*(hidden+ffn)*<name>Activation)
		bound[i] = m.bound(moved, 2.0*3*hidden*ffn*active*t, size)
	}
	return bound
}
"""

_NEAREST = """\
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

_DECODE = """\
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

_PREFILL = """\
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

_ALLREDUCE = """\
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
    "numeric": _NUMERIC,
    "roofline": _ROOFLINE,
    "gemm": _GEMM,
    "moe": _MOE,
    "nearest": _NEAREST,
    "decode": _DECODE,
    "prefill": _PREFILL,
    "allreduce": _ALLREDUCE,
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


def kernels_file(name: Name, curves: Sequence[str]) -> str:
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
