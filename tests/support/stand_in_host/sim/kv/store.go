// Package kv has the KV cache.
package kv

import "github.com/inference-sim/inference-sim/sim"

type store struct{ tokens int64 }

func (s store) CapacityTokens() int64 { return s.tokens }

// NewKVStore makes a KV cache of this size.
func NewKVStore(cfg sim.KVCacheConfig, seed int64) sim.KVStore {
	return store{cfg.TotalKVBlocks * cfg.BlockSizeTokens}
}
