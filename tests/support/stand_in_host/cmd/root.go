// Package cmd has the command line. Its two backends are roofline and trained-physics.
package cmd

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/latency"
)

var (
	model, gpu, latencyModelBackend, modelConfigFolder, hwConfigPath string
	tensorParallelism                                                int
	totalKVBlocks, blockSizeTokens, maxModelLen                      int64
	maxNumSeqs, maxNumBatchedTokens                                  int64
	prefillHardware, decodeHardware                                  string
	prefillInstances, decodeInstances                                int
)

// latencyResolution is what the flags say of the latency model.
type latencyResolution struct {
	Backend     string
	ModelConfig sim.ModelConfig
	HWConfig    sim.HardwareCalib
}

// Execute runs the command with these arguments.
func Execute(arguments []string) error {
	if len(arguments) == 0 || arguments[0] != "replay" {
		return fmt.Errorf("usage: blis replay FLAGS")
	}
	return replay(arguments[1:])
}

func registerFlags(flags *flag.FlagSet) {
	flags.StringVar(&model, "model", "", "Name of the model")
	flags.StringVar(&gpu, "hardware", "", "GPU of the hardware table")
	flags.IntVar(&tensorParallelism, "tp", 0, "Tensor parallelism")
	flags.StringVar(&latencyModelBackend, "latency-model", "trained-physics", "Where times come from: trained-physics (default), roofline")
	flags.StringVar(&modelConfigFolder, "model-config-folder", "", "Folder of the model's config.json")
	flags.StringVar(&hwConfigPath, "hardware-config", "", "The hardware table")
	flags.Int64Var(&totalKVBlocks, "total-kv-blocks", 1000000, "KV blocks")
	flags.Int64Var(&blockSizeTokens, "block-size-in-tokens", 16, "Tokens of a KV block")
	flags.Int64Var(&maxModelLen, "max-model-len", 0, "Tokens of a sequence; 0: no limit")
	flags.StringVar(&prefillHardware, "prefill-hardware", "", "GPU of the instances that prefill")
	flags.StringVar(&decodeHardware, "decode-hardware", "", "GPU of the instances that decode")
	flags.IntVar(&prefillInstances, "prefill-instances", 0, "Instances that prefill")
	flags.IntVar(&decodeInstances, "decode-instances", 0, "Instances that decode")
	flags.Int64Var(&maxNumSeqs, "max-num-seqs", 256, "Requests of a step")
	flags.Int64Var(&maxNumBatchedTokens, "max-num-batched-tokens", 2048, "Tokens of a step")
}

// resolveModelConfig is the folder that has the model's config.json.
func resolveModelConfig(model, folder string) (string, error) {
	if folder == "" {
		return "", fmt.Errorf("--model-config-folder is needed for %q", model)
	}
	return folder, nil
}

func resolveLatencyConfig() (latencyResolution, error) {
	resolved := latencyResolution{Backend: latencyModelBackend}
	if !sim.IsValidLatencyBackend(latencyModelBackend) {
		names := strings.Join(sim.ValidLatencyBackendNames(), ", ")
		return resolved, fmt.Errorf("no --latency-model %q; there are %s", latencyModelBackend, names)
	}
	backend := latencyModelBackend
	if backend == "roofline" {
		if gpu == "" || tensorParallelism <= 0 {
			return resolved, fmt.Errorf("--hardware and --tp are needed")
		}
		folder, err := resolveModelConfig(model, modelConfigFolder)
		if err != nil {
			return resolved, err
		}
		modelConfigFolder = folder
	}
	if backend == "trained-physics" {
		if gpu == "" || tensorParallelism <= 0 {
			return resolved, fmt.Errorf("--hardware and --tp are needed")
		}
		folder, err := resolveModelConfig(model, modelConfigFolder)
		if err != nil {
			return resolved, err
		}
		modelConfigFolder = folder
	}
	if backend == "roofline" || backend == "trained-physics" {
		config, err := latency.ParseHFConfig(filepath.Join(modelConfigFolder, "config.json"))
		if err != nil {
			return resolved, err
		}
		parsed, err := latency.GetModelConfigFromHF(config)
		if err != nil {
			return resolved, err
		}
		resolved.ModelConfig = *parsed
		if resolved.HWConfig, err = latency.GetHWConfig(hwConfigPath, gpu); err != nil {
			return resolved, err
		}
		if backend == "roofline" && parsed.IsMoE() {
			fmt.Println("roofline: experts are read whole")
		}
	}
	return resolved, nil
}
