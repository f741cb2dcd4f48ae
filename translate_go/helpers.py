"""The guarded functions in Go. Each is written into the file only if the program calls it,
filled with the name of the backend.

They mirror language/guarded.py and clock/vm.py, including NaN: Go's builtin max and min propagate it.
"""

HELPERS = {
    "safeDiv": """\
// <name>SafeDiv is x/y, and 0 where y is 0.
func <name>SafeDiv(x, y float64) float64 {
	if y == 0 {
		return 0
	}
	return x / y
}
""",
    "safeSqrt": """\
// <name>SafeSqrt is the square root of max(x, 0).
func <name>SafeSqrt(x float64) float64 {
	return math.Sqrt(max(x, 0))
}
""",
    "safeLog": """\
// <name>SafeLog is the natural logarithm of x, or of 1e-12 for x <= 0.
func <name>SafeLog(x float64) float64 {
	if x <= 0 {
		x = 1e-12
	}
	return math.Log(x)
}
""",
    "safeLog1p": """\
// <name>SafeLog1p is log(1 + max(x, 0)).
func <name>SafeLog1p(x float64) float64 {
	return math.Log1p(max(x, 0))
}
""",
    "safeExp": """\
// <name>SafeExp is e^x with x clipped to 50.
func <name>SafeExp(x float64) float64 {
	return math.Exp(min(x, 50))
}
""",
    "safeSoftplus": """\
// <name>SafeSoftplus is log(1 + e^x), written so that no exponential overflows.
func <name>SafeSoftplus(x float64) float64 {
	return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))
}
""",
    "safePow": """\
// <name>SafePow is max(x, 0)^c with c clipped to [-4, 4].
func <name>SafePow(x, c float64) float64 {
	return math.Pow(max(x, 0), max(-4, min(4, c)))
}
""",
    "expertsTouched": """\
// <name>ExpertsTouched is the expected share of distinct experts that the tokens of a step are routed to,
// 1 - (1 - active/experts)^tokens with the power by repeated squaring; 0 for a dense model or no tokens.
func <name>ExpertsTouched(active, experts, tokens float64) float64 {
	if experts <= 0 || tokens <= 0 {
		return 0
	}
	base, missed := 1-active/experts, 1.0
	for n := int64(tokens); n > 0; n >>= 1 {
		if n&1 == 1 {
			missed = float64(missed * base)
		}
		base = float64(base * base)
	}
	return 1 - missed
}
""",
    "capturedBatch": """\
// <name>CapturedBatch is the decode batch rounded up to a captured CUDA graph size (1, 2, 4, multiples of 8 to 512);
// the true batch size above 512 or with prefill present.
func <name>CapturedBatch(prefillReqs, decodeReqs float64) float64 {
	switch {
	case prefillReqs > 0 || decodeReqs > 512:
		return prefillReqs + decodeReqs
	case decodeReqs <= 2:
		return decodeReqs
	case decodeReqs <= 4:
		return 4
	}
	return float64(8 * math.Ceil(decodeReqs/8))
}
""",
    "capturedTokens": """\
// <name>CapturedTokens is the number of tokens rounded up to a captured CUDA graph size (1, 2, 4, multiples of
// 8 to 256, of 16 above); the true number above the largest size, which is at most twice maxSeqs and at most 512.
func <name>CapturedTokens(tokens, maxSeqs float64) float64 {
	limit := min(2*maxSeqs, 512)
	if !(tokens <= limit) || tokens <= 2 {
		return tokens
	}
	size := 4.0
	switch {
	case tokens > 256:
		size = float64(16 * math.Ceil(tokens/16))
	case tokens > 4:
		size = float64(8 * math.Ceil(tokens/8))
	}
	if size > limit {
		return tokens
	}
	return size
}
""",
    "variance": """\
// <name>Variance is the population variance of n numbers from 0 up, with this sum and sum of squares. The integers that
// it is computed from have 128 bits and are rounded once.
func <name>Variance(n, sum, squares int64) float64 {
	if n == 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(n), uint64(squares))
	sumHigh, sumLow := bits.Mul64(uint64(sum), uint64(sum))
	low, borrow := bits.Sub64(low, sumLow, 0)
	high, _ = bits.Sub64(high, sumHigh, borrow)
	difference := float64(low)
	if high > 0 {
		shift := bits.LeadingZeros64(high)
		top := high<<shift | low>>(64-shift)
		if low<<shift != 0 {
			top |= 1 // what is cut off decides ties
		}
		difference = math.Ldexp(float64(top), 64-shift)
	}
	return difference / float64(n*n)
}
""",
    "curveAt": """\
// <name>CurveAt reads a curve at x. Its knots are eight to an octave, at 1, 1.125, ... 2, 2.25, ... 4, 4.5 and so
// on, with straight lines between them. Below 1 the curve has its first value; beyond the last knot the last line
// continues.
func <name>CurveAt(knots []float64, x float64) float64 {
	if !(x >= 1) {
		if x != x {
			return x
		}
		return knots[0]
	}
	x = min(x, 1<<62)           // larger than any count: an infinite x is in no interval
	bits := math.Float64bits(x) // the exponent is the octave; of the 52 bits after it, three are the knot, 49 the share
	i := int(bits>>49) - 1023*8
	share := float64(bits&(1<<49-1)) / (1 << 49)
	if last := len(knots) - 2; i > last {
		octave := float64(int64(1) << (last / 8))
		width := octave / 8
		start := octave + float64(width*float64(last%8))
		i, share = last, (x-start)/width
	}
	low := knots[i]
	return low + float64(share*(knots[i+1]-low))
}
""",
}

MAX_TICKS = """\
// <name>MaxTicks is the longest time that the clock takes, 10^10 microseconds.
const <name>MaxTicks = 10_000_000_000
"""

# by the conversion of the host's package, which saturates: NaN and what is too large become the largest int64
HOST_TICKS = """\
// <name>Ticks is a time as the simulator's clock counts it: truncated to whole microseconds and clamped to
// [low, <name>MaxTicks]; NaN becomes <name>MaxTicks.
func <name>Ticks(us float64, low int64) int64 {
	return min(clampToInt64(max(us, float64(low))), <name>MaxTicks)
}
"""

OWN_TICKS = """\
// <name>Ticks is a time as the simulator's clock counts it: truncated to whole microseconds and clamped to
// [low, <name>MaxTicks]; NaN becomes <name>MaxTicks.
func <name>Ticks(us float64, low int64) int64 {
	if !(us < <name>MaxTicks) { // unlike us >= <name>MaxTicks, this catches NaN
		return <name>MaxTicks
	}
	if !(us > float64(low)) {
		return low
	}
	return int64(us)
}
"""
