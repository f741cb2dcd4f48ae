package cmd

import (
	"encoding/csv"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/cluster"
	"github.com/inference-sim/inference-sim/sim/latency"
	"github.com/sirupsen/logrus"
)

// replay runs a trace (CSV: arrival_us, input_tokens, output_tokens) and prints row, TTFT and E2E of each request.
func replay(arguments []string) error {
	flags := flag.NewFlagSet("replay", flag.ContinueOnError)
	registerFlags(flags)
	trace := flags.String("trace", "", "The requests, CSV")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	lr, err := resolveLatencyConfig()
	if err != nil {
		return err
	}
	if lr.Backend == "roofline" || lr.Backend == "trained-physics" {
		config, err := latency.ParseHFConfig(filepath.Join(modelConfigFolder, "config.json"))
		if err != nil {
			return err
		}
		logrus.Warnf("%d keys in the model's config", len(config.Raw))
	}
	rows, err := readTrace(*trace)
	if err != nil {
		return err
	}
	config := cluster.DeploymentConfig{NumInstances: 1, SimConfig: sim.SimConfig{
		Horizon:       math.MaxInt64,
		KVCacheConfig: sim.KVCacheConfig{TotalKVBlocks: totalKVBlocks, BlockSizeTokens: blockSizeTokens},
		BatchConfig:   sim.BatchConfig{MaxNumSeqs: maxNumSeqs, MaxNumBatchedTokens: maxNumBatchedTokens},
		LatencyCoeffs: sim.LatencyCoeffs{AlphaCoeffs: []float64{0, 0, 0}, BetaCoeffs: []float64{0, 0, 0}},
		ModelHardwareConfig: sim.ModelHardwareConfig{
			ModelConfig: lr.ModelConfig, HWConfig: lr.HWConfig, Model: model, GPU: gpu, TP: tensorParallelism, DP: 1,
			Backend: lr.Backend, MaxModelLen: maxModelLen,
		},
	}}
	config.PrefillInstances, config.DecodeInstances = prefillInstances, decodeInstances
	config.PrefillOverrides.GPU, config.DecodeOverrides.GPU = prefillHardware, decodeHardware
	s := cluster.NewClusterSimulator(config)
	for i, row := range rows {
		s.InjectArrival(&sim.Request{
			ID: strconv.Itoa(i), ArrivalTime: int64(row[0]),
			InputTokens: make([]sim.TokenID, row[1]), OutputTokens: make([]sim.TokenID, row[2]),
		})
	}
	s.Run()
	for i := range rows {
		id := strconv.Itoa(i)
		fmt.Printf("%d %.0f %.0f\n", i, s.Metrics.RequestTTFTs[id], s.Metrics.RequestE2Es[id])
	}
	return nil
}

func readTrace(path string) ([][3]int, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	records, err := csv.NewReader(file).ReadAll()
	if err != nil || len(records) == 0 {
		return nil, fmt.Errorf("%s: no trace: %v", path, err)
	}
	var rows [][3]int
	for _, record := range records[1:] {
		var row [3]int
		for i := range row {
			if row[i], err = strconv.Atoi(record[i]); err != nil {
				return nil, err
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}
