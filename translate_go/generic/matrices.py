"""Matrix products and routed experts of measured shapes in Go, as simulator.kernels.matrices has them.

ROOFLINE is needed by both, and NUMERIC by all measured kernels.
"""

from __future__ import annotations

NUMERIC = """\
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

ROOFLINE = """\
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

GEMM = """\
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
				weight := float64(a.weight * b.weight)
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

MOE = """\
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
