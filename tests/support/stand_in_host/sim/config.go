package sim

// KVCacheConfig sizes the KV cache.
type KVCacheConfig struct {
	TotalKVBlocks   int64 // blocks
	BlockSizeTokens int64 // tokens of a block
}

// BatchConfig limits a step.
type BatchConfig struct {
	MaxNumSeqs          int64 // requests
	MaxNumBatchedTokens int64 // new tokens
}

// LatencyCoeffs are regression coefficients.
type LatencyCoeffs struct {
	BetaCoeffs  []float64
	AlphaCoeffs []float64
}

// ModelHardwareConfig is a model on GPUs.
type ModelHardwareConfig struct {
	ModelConfig          ModelConfig
	HWConfig             HardwareCalib
	Model                string
	GPU                  string
	TP                   int
	DP                   int
	EnableExpertParallel bool
	MoECommBackend       string
	Backend              string
	MaxModelLen          int64 // tokens; 0: no limit
}

// SimConfig is all that an instance is built from.
type SimConfig struct {
	Horizon int64 // us
	KVCacheConfig
	BatchConfig
	LatencyCoeffs
	ModelHardwareConfig
	AdapterFactor float64 // of every step; 0: no adapters
}

type constantCost float64

func (c constantCost) StepOverheadFactor([]*Request) float64 { return float64(c) }

// BuildAdapterCost is the cost of the config's adapters, nil without any.
func BuildAdapterCost(cfg SimConfig) (AdapterCost, error) {
	if cfg.AdapterFactor == 0 {
		return nil, nil
	}
	return constantCost(cfg.AdapterFactor), nil
}
