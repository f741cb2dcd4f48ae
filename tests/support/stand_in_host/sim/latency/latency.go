// Package latency has the latency models.
package latency

import (
	"fmt"
	"math"
	"strings"

	"github.com/inference-sim/inference-sim/sim"
)

// clampToInt64 is v without its fraction; NaN and what is too large become the largest int64.
func clampToInt64(v float64) int64 {
	if math.IsNaN(v) || v >= float64(math.MaxInt64) {
		return math.MaxInt64
	}
	return int64(v)
}

// Option is something that a model may be given. Both backends get the same ones.
type Option func(*latencyOptions)

// latencyOptions are the options given so far.
type latencyOptions struct {
	adapterCost sim.AdapterCost
}

// WithAdapterCost gives the cost of adapters; nil is none.
func WithAdapterCost(cost sim.AdapterCost) Option {
	return func(o *latencyOptions) { o.adapterCost = cost }
}

// applyAdapterOverhead is a step with the overhead of its adapters, if there are any.
func applyAdapterOverhead(us int64, batch []*sim.Request, cost sim.AdapterCost) int64 {
	if cost == nil {
		return us
	}
	factor := cost.StepOverheadFactor(batch)
	if !(factor > 1) || math.IsInf(factor, 0) {
		return us
	}
	return max(1, clampToInt64(float64(us)*factor))
}

// simple is a constant and a rate per new token, in microseconds.
type simple struct {
	base, token float64
	adapterCost sim.AdapterCost
}

func (m *simple) StepTime(batch []*sim.Request) int64 {
	us := m.base
	for _, req := range batch {
		us += m.token * float64(req.NumNewTokens)
	}
	return applyAdapterOverhead(max(1, clampToInt64(us)), batch, m.adapterCost)
}

func (m *simple) QueueingTime(*sim.Request) int64  { return 0 }
func (m *simple) OutputTokenProcessingTime() int64 { return 0 }
func (m *simple) PostDecodeFixedOverhead() int64   { return 0 }

// NewLatencyModel makes the model that hw.Backend names: "roofline" → simple,
// "trained-physics" → simple. Options reach both backends.
func NewLatencyModel(coeffs sim.LatencyCoeffs, hw sim.ModelHardwareConfig, opts ...Option) (sim.LatencyModel, error) {
	var o latencyOptions
	for _, opt := range opts {
		opt(&o)
	}
	if len(coeffs.AlphaCoeffs) < 3 {
		return nil, fmt.Errorf("latency model: three alpha coefficients are needed")
	}
	switch hw.Backend {
	case "", "roofline":
		if hw.TP <= 0 {
			return nil, fmt.Errorf("latency model: roofline needs a TP, not %d", hw.TP)
		}
		return &simple{float64(hw.ModelConfig.NumLayers), 1, o.adapterCost}, nil
	case "trained-physics":
		if hw.TP <= 0 {
			return nil, fmt.Errorf("latency model: trained-physics needs a TP, not %d", hw.TP)
		}
		return &simple{1000, 2, o.adapterCost}, nil
	default:
		return nil, fmt.Errorf("latency model: no backend %q; there are %s",
			hw.Backend, strings.Join(sim.ValidLatencyBackendNames(), ", "))
	}
}
