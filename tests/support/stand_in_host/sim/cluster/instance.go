// Package cluster has the instances.
package cluster

import (
	"fmt"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/kv"
	"github.com/inference-sim/inference-sim/sim/latency"
)

// NewInstance makes the simulator of one instance. It panics if it cannot. The cost of adapters is for both latency backends.
func NewInstance(cfg sim.SimConfig) *sim.Simulator {
	store := kv.NewKVStore(cfg.KVCacheConfig, 1)
	adapterCost, err := sim.BuildAdapterCost(cfg)
	if err != nil {
		panic(fmt.Sprintf("instance: %v", err))
	}
	model, err := latency.NewLatencyModel(cfg.LatencyCoeffs, cfg.ModelHardwareConfig,
		latency.WithAdapterCost(adapterCost))
	if err != nil {
		panic(fmt.Sprintf("instance: %v", err))
	}
	s, err := sim.NewSimulator(cfg, store, model)
	if err != nil {
		panic(fmt.Sprintf("instance: %v", err))
	}
	return s
}
