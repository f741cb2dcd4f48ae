"""A stand-in for the host's simulator as a library: the types that a main program needs, and a run of single requests.

Requests are served one after the other, without waiting for each other, so that their times are sums of the latency
model's: queueing, a step for the prompt, a step for each further token.
"""

from __future__ import annotations

from pathlib import Path

_LIBRARY = """\
package sim

import (
	"errors"
	"slices"
)

// RequestState is where a request stands.
type RequestState string

// StateQueued is that of a request that has not run.
const StateQueued RequestState = "queued"

// KVCacheConfig is the size of the cache.
type KVCacheConfig struct {{
	TotalKVBlocks   int64
	BlockSizeTokens int64
}}

// BatchConfig bounds a step.
type BatchConfig struct {{
	{seats}                 int64
	{budget}                int64
	LongPrefillTokenThreshold int64
}}

// SimConfig is all that a simulation is made of.
type SimConfig struct {{
	Horizon int64
	Seed    int64
	KVCacheConfig
	BatchConfig
	ModelHardwareConfig
}}

// KVStore is a cache.
type KVStore interface{{ TotalCapacity() int64 }}

// Metrics are the results, in microseconds by request.
type Metrics struct {{
	CompletedRequests int
	PreemptionCount   int64
	RequestTTFTs      map[string]float64
	RequestE2Es       map[string]float64
}}

// Simulator serves requests.
type Simulator struct {{
	Metrics  *Metrics
	horizon  int64
	model    LatencyModel
	requests []*Request
}}

// NewSimulator checks what it is made of.
func NewSimulator(cfg SimConfig, store KVStore, model LatencyModel) (*Simulator, error) {{
	if store == nil || store.TotalCapacity() <= 0 || cfg.{seats} <= 0 || cfg.{budget} <= 0 {{
		return nil, errors.New("a limit is missing")
	}}
	metrics := &Metrics{{RequestTTFTs: map[string]float64{{}}, RequestE2Es: map[string]float64{{}}}}
	return &Simulator{{Metrics: metrics, horizon: cfg.Horizon, model: model}}, nil
}}

// InjectArrival adds a request.
func (s *Simulator) InjectArrival(req *Request) {{ s.requests = append(s.requests, req) }}

// Run serves the requests that arrive before the horizon.
func (s *Simulator) Run() {{
	for _, req := range s.requests {{
		if req.ArrivalTime > s.horizon || req.State != StateQueued || slices.Contains(req.InputTokens, 0) {{
			continue
		}}
		us := s.model.QueueingTime(req)
		req.NumNewTokens = len(req.InputTokens)
		us += s.model.StepTime([]*Request{{req}})
		s.Metrics.RequestTTFTs[req.ID] = float64(us)
		req.ProgressIndex, req.NumNewTokens = int64(len(req.InputTokens)), 1
		for range req.OutputTokens[1:] {{
			us += s.model.StepTime([]*Request{{req}})
			req.ProgressIndex++
		}}
		s.Metrics.RequestE2Es[req.ID] = float64(us)
		s.Metrics.CompletedRequests++
	}}
}}
"""
_KV = """\
// Package kv stands in for the host's cache.
package kv

import "{module}/sim"

type store struct{{ blocks int64 }}

func (s store) TotalCapacity() int64 {{ return s.blocks }}

// NewKVStore makes a cache.
func NewKVStore(cfg sim.KVCacheConfig{seed}) sim.KVStore {{ return store{{cfg.TotalKVBlocks}} }}
"""


_REGISTERED = """
// stores makes the cache; package kv registers it.
var stores func(KVCacheConfig) KVStore

// RegisterKVStore is called by package kv.
func RegisterKVStore(make func(KVCacheConfig) KVStore) { stores = make }

// MustNewKVStoreFromConfig makes the registered cache.
func MustNewKVStoreFromConfig(cfg KVCacheConfig) KVStore { return stores(cfg) }
"""
_INIT = "\nfunc init() { sim.RegisterKVStore(NewKVStore) }\n"


def add_library(workdir: Path, module: str, *, main: bool, newest: bool = False) -> None:
    """Add the simulator to the module with the stand-in for the host's types, as on its main or its frozen branch.

    `newest`: as on its newest branch, whose package kv registers its store.
    """
    types = workdir / "sim" / "sim.go"
    text = types.read_text("utf-8")
    token = "TokenID" if main else "int"
    request = f"\tID string\n\tArrivalTime int64\n\tOutputTokens []{token}\n\tState RequestState\n"
    for kind, fields in (("Request", request), ("ModelHardwareConfig", "\tMaxModelLen int64\n" * main)):
        head = f"type {kind} struct {{\n"
        assert head in text
        text = text.replace(head, head + fields)
    types.write_text(text, "utf-8")
    seats, budget = ("MaxNumSeqs", "MaxNumBatchedTokens") if main else ("MaxRunningReqs", "MaxScheduledTokens")
    library = _LIBRARY.format(seats=seats, budget=budget)
    (workdir / "sim" / "library.go").write_text(library + _REGISTERED * newest, "utf-8")
    (workdir / "sim" / "kv").mkdir()
    seed = ", _ int64" if main and not newest else ""
    (workdir / "sim" / "kv" / "kv.go").write_text(_KV.format(module=module, seed=seed) + _INIT * newest, "utf-8")
