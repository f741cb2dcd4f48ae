"""A complete Go program that runs the emitted model in the host's simulator, without any edit of the host."""

from __future__ import annotations

from collections.abc import Sequence

from translate_go.constructors import constructor, options_literal
from translate_go.deployment import Deployment
from translate_go.guide.command import limits_of, settings_of
from translate_go.target import MODULE, EmitPlan

_SECTION = """
## Without editing BLIS

The simulator is also a library. With the files above in `sim/latency/`, this is a complete `cmd/<stem>/main.go`; run it
with `go run ./cmd/<stem>`. Times are in microseconds.

```go
{program}```
{note}"""
_TIES = """
Requests with tied times differ from a run of this branch's own command, which queues them one by one.
"""
_PROGRAM = """\
// Command <stem> replays requests with the latency model <registered>.
package main

import (
	"fmt"
	"log"
	"math"

	"{module}/sim"
	"{module}/sim/kv"
	"{module}/sim/latency"
)

const requests = 10

func main() {{
	model, err := {model}
	if err != nil {{
		log.Fatal(err)
	}}
	cfg := sim.SimConfig{{
		Horizon:       math.MaxInt64, // us; with 0 it ends at once
		Seed:          1,
		KVCacheConfig: sim.KVCacheConfig{{TotalKVBlocks: {blocks}, BlockSizeTokens: {block}}},
		BatchConfig: sim.BatchConfig{{
{batch}
		}},{longest}
	}}
	simulator, err := sim.NewSimulator(cfg, {store}, model)
	if err != nil {{
		log.Fatal(err)
	}}
	for i := 0; i < requests; i++ {{ // your own: arrival in us, tokens of prompt and answer
		simulator.InjectArrival(&sim.Request{{
			ID:           fmt.Sprintf("request_%d", i),
			ArrivalTime:  int64(i) * 10_000_000,
			InputTokens:  tokens(i, 500),
			OutputTokens: tokens(i, 100),
			State:        sim.StateQueued,
		}})
	}}
	simulator.Run()
	m := simulator.Metrics
	for i := 0; i < requests; i++ {{
		id := fmt.Sprintf("request_%d", i)
		fmt.Printf("%s: TTFT %.0f us, E2E %.0f us\\n", id, m.RequestTTFTs[id], m.RequestE2Es[id])
	}}
	fmt.Printf("%d of %d completed, %d preemptions\\n", m.CompletedRequests, requests, m.PreemptionCount)
}}

// tokens returns n tokens of request i. No other request begins with them, so no prefix is found in the cache.
func tokens(i, n int) []{token} {{
	made := make([]{token}, n)
	for k := range made {{
		made[k] = {token}(1000*i + k + 1)
	}}
	return made
}}
"""


def library(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """The section of INTEGRATION.md with the program."""
    note = "" if plan.target.branch == "main" else _TIES
    return plan.name.fill(_SECTION).format(program=library_program(plan, deployments), note=note)


def library_program(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """The Go source, for the first of the deployments; for one to fill in where none is baked in."""
    deployment = deployments[0] if deployments else None
    limits = limits_of(deployment)
    main = plan.target.branch == "main"
    seats, budget = ("MaxNumSeqs", "MaxNumBatchedTokens") if main else ("MaxRunningReqs", "MaxScheduledTokens")
    rows = [(seats, limits.max_num_seqs), (budget, limits.max_num_batched_tokens)]
    if limits.long_prefill_token_threshold:
        rows.append(("LongPrefillTokenThreshold", limits.long_prefill_token_threshold))
    width = max(len(name) for name, _ in rows) + 1
    longest = f"\n\t\tModelHardwareConfig: sim.ModelHardwareConfig{{MaxModelLen: {limits.max_model_len}}},"
    return plan.name.fill(_PROGRAM).format(
        module=MODULE,
        model=_model(plan, deployments),
        blocks=limits.kv_blocks,
        block=limits.block_size,
        batch="\n".join(f"\t\t\t{name + ':':{width}} {value}," for name, value in rows),
        longest=longest if main and limits.max_model_len else "",
        store="kv.NewKVStore(cfg.KVCacheConfig, cfg.Seed)" if main else "kv.NewKVStore(cfg.KVCacheConfig)",
        token="sim.TokenID" if main else "int",
    )


def _model(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """The Go call that makes the model."""
    if deployments:
        return constructor(plan, deployments[0], deployments, package="latency")
    options = options_literal(plan, settings_of(None), "latency") if plan.options else ""
    if not plan.reads_deployment:
        return f"latency.New{plan.name.exported}({options})"
    facts = f"latency.{plan.name.exported}Deployment{{ /* the facts named in {plan.name.source_file} */ }}"
    return f"latency.New{plan.name.exported}({facts}{options and f', {options}'})"
