package cluster

import "github.com/inference-sim/inference-sim/sim"

// PoolRole is what the instances of a pool do.
type PoolRole int

// The roles; 0 is none.
const (
	PoolRolePrefill PoolRole = iota + 1
	PoolRoleDecode
)

// PoolOverrides are what a pool's instances have different from the deployment's.
type PoolOverrides struct {
	GPU     string
	Backend string
}

// NodePoolConfig is a pool of nodes with the same GPUs.
type NodePoolConfig struct {
	Name    string
	GPUType string
}

// DeploymentConfig describes all instances.
type DeploymentConfig struct {
	sim.SimConfig
	NumInstances     int
	PrefillInstances int
	DecodeInstances  int
	PrefillOverrides PoolOverrides
	DecodeOverrides  PoolOverrides
	NodePools        []NodePoolConfig
}

// resolveConfigForRole is the config of an instance with this role.
func (d DeploymentConfig) resolveConfigForRole(role PoolRole) sim.SimConfig {
	cfg, overrides := d.SimConfig, PoolOverrides{}
	switch role {
	case PoolRolePrefill:
		overrides = d.PrefillOverrides
	case PoolRoleDecode:
		overrides = d.DecodeOverrides
	}
	if overrides.GPU != "" {
		cfg.GPU = overrides.GPU
	}
	if overrides.Backend != "" {
		cfg.Backend = overrides.Backend
	}
	return cfg
}

// NewClusterSimulator makes the first instance of the deployment. It panics if it cannot.
func NewClusterSimulator(config DeploymentConfig) *sim.Simulator {
	role := PoolRole(0)
	if config.PrefillInstances > 0 {
		role = PoolRolePrefill
	}
	return NewInstance(config.resolveConfigForRole(role))
}
