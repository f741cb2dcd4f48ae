package latency

import (
	"testing"

	"github.com/inference-sim/inference-sim/sim"
)

func TestNewLatencyModel_UnknownBackend(t *testing.T) {
	hw := sim.ModelHardwareConfig{Backend: "nonesuch", TP: 1}
	if _, err := NewLatencyModel(sim.LatencyCoeffs{AlphaCoeffs: []float64{0, 0, 0}}, hw); err == nil {
		t.Error("a backend that is none is accepted")
	}
}
