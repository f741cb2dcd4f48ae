package latency

import "github.com/inference-sim/inference-sim/sim"

func init() {
	// Options do not reach a model that is made here: the variable's type has no place for them.
	sim.NewLatencyModelFunc = func(coeffs sim.LatencyCoeffs, hw sim.ModelHardwareConfig) (sim.LatencyModel, error) {
		return NewLatencyModel(coeffs, hw)
	}
}
