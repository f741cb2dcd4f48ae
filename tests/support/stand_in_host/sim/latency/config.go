package latency

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/inference-sim/inference-sim/sim"
)

// HFConfig is a model's config.json.
type HFConfig struct {
	Raw map[string]any
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// ParseHFConfig reads a model's config.json.
func ParseHFConfig(path string) (*HFConfig, error) {
	var raw map[string]any
	if err := readJSON(path, &raw); err != nil {
		return nil, fmt.Errorf("config of the model: %w", err)
	}
	return &HFConfig{raw}, nil
}

func (c *HFConfig) whole(names ...string) int {
	for _, name := range names {
		if x, ok := c.Raw[name].(float64); ok {
			return int(x)
		}
	}
	return 0
}

// GetModelConfigFromHF is the architecture that a config.json describes.
func GetModelConfigFromHF(c *HFConfig) (*sim.ModelConfig, error) {
	if c.whole("num_hidden_layers") == 0 {
		return nil, fmt.Errorf("config of the model: no num_hidden_layers")
	}
	act, _ := c.Raw["hidden_act"].(string)
	kvHeads := c.whole("num_key_value_heads", "num_attention_heads")
	return &sim.ModelConfig{
		NumLayers: c.whole("num_hidden_layers"), HiddenDim: c.whole("hidden_size"),
		NumHeads: c.whole("num_attention_heads"), NumKVHeads: kvHeads, VocabSize: c.whole("vocab_size"),
		BytesPerParam: 2, IntermediateDim: c.whole("intermediate_size"), HiddenAct: act,
		NumLocalExperts: c.whole("num_local_experts"), NumExpertsPerTok: c.whole("num_experts_per_tok"),
		HeadDim: c.whole("head_dim"),
	}, nil
}

// GetHWConfig is a GPU of the hardware table.
func GetHWConfig(path, gpu string) (sim.HardwareCalib, error) {
	var table map[string]sim.HardwareCalib
	if err := readJSON(path, &table); err != nil {
		return sim.HardwareCalib{}, fmt.Errorf("hardware table: %w", err)
	}
	hw, ok := table[gpu]
	if !ok {
		return hw, fmt.Errorf("hardware table: no %q", gpu)
	}
	return hw, nil
}
