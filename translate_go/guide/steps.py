"""Sections of INTEGRATION.md for one branch of the host: registration, the command, and what to know of it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from translate_go.constructors import options_literal
from translate_go.deployment import Deployment
from translate_go.guide.command import names_deployment, replay_command, run_command, settings_of
from translate_go.spelling import clean
from translate_go.target import BLIS_5_DIFFERS, Plan

_MAIN = """
## Registering it

1. `sim/latency/latency.go`, in `NewLatencyModel`: add to the switch on `hw.Backend`

       case "<registered>":
{made}

2. `sim/bundle.go`: add `"<registered>": true` to `validLatencyBackends`. `--latency-model`, the flags of each pool and
   the error texts take the names from there.
3. `sim/bundle_test.go`: `TestValidLatencyBackendNames_ExcludesRemoved` counts the names. Change its line

       expected := []string{{"roofline", "trained-physics"}}

   to

       expected := []string{{{names_expected}}}

   The names are in order; a comment there that says how many they are needs one more, too.

4. `cmd/root.go`, in `registerSimConfigFlags`: the help text of `--latency-model` is written out, so it does not name
   `<registered>` until you add it. Nothing depends on it.
{wiring}5. `go vet ./... && go test ./sim/... ./cmd/... && go build -o blis .`

## Running it

{whose}:

    {command}

- `--model` is mandatory. {names}
- `header.yaml` and `trace.csv` are a trace in the host's own format, TraceV2. `evolve simulate --id ID --export tracev2
  --out FOLDER` writes one of an experiment's load.
- Without `--horizon` (us), `replay` ends at twice the last arrival, and what is then queued or running does not count.
- `--cache-signal-delay 0 --snapshot-refresh-interval 0` makes it 13 times as fast, with the same results on one
  instance: 2.9 s instead of 31 to 40 s of user time for 16,800 requests.
{sizing}
- The exact number of blocks is in your engine's log: `GPU KV cache size: N tokens`, divided by the block size. Do not
  take it from a run with a built-in backend and tensor parallelism: the host's own count was about TP times too large.
- `results.json` has TTFT and E2E of each completed request in us, and is what `blis calibrate` reads.

Also:

{offload}- `--dp` above 1, `--enable-expert-parallel` and `--moe-comm-backend` are refused.
- `--num-speculative-tokens` does not lengthen the steps of this backend.
- Several instances, and a backend for each pool (`--prefill-latency-model`, `--decode-latency-model`), work.
- `--alpha-coeffs` and `--beta-coeffs` are not needed. Both without `--latency-model` silently select another backend.
- The host must find its `defaults.yaml`, in the working directory or by `--defaults-filepath`.
- The factor of a step's time for its adapters (LoRA) is applied by the host's own function, as in its other backends.

For the frozen branch stepml-experiments, emit it with `--target blis-5`: these files lack methods of that branch.
"""

_UNSIZED = """\
- For a backend that it did not build, the host computes neither KV blocks nor limits: the defaults are 1,000,000 blocks
  of 16 tokens, 256 requests and 2,048 tokens per step, and no limit on a sequence."""
_SIZED = """\
- With step 4's second edit the host computes the KV blocks of this backend as for its own, if you leave out
  `--total-kv-blocks`. The other defaults are 16 tokens a block, 256 requests and 2,048 tokens per step."""
_OFFLOAD = """\
- `--kv-offload-config` fails: it needs the model's config, which the command reads for the built-in backends only.
"""
_WIRING = """\
   In every file of `cmd/`: the model's config.json and the hardware table are read for the built-in backends only.
   Where `backend == "roofline"` guards the call of `resolveModelConfig`, and where both names guard `ParseHFConfig`,

       if backend == "roofline" || backend == "trained-physics" {{

   add `|| backend == "<registered>"`. Without it the backend is refused for want of the model's layers.
"""

_STEPML = """
## Registering it

This branch chooses its backend by which settings are present, so it needs a name first.

1. `sim/config.go`: add `Backend string` to `ModelHardwareConfig`; the positional constructor can stay as it is.
2. `sim/latency/latency.go`: in `NewLatencyModel`, after the alpha coefficients are checked,

       if hw.Backend == "<registered>" {{
           return New<Name>Backend(coeffs, hw{options})
       }}

3. `cmd/root.go`: add a string flag `--latency-backend`, stored in `Backend` before the cluster is built. Where the
   command tests whether all coefficients are zero (two places), also require that no backend was named: otherwise it
   looks for coefficients in `defaults.yaml` and stops. A dummy non-zero `--beta-coeffs` has the same effect without
   this edit.
4. `go vet ./... && go test ./sim/... && go build -o blis .`

## Running it

{whose}:

    {command}

- `--model` is mandatory. {names}
- `--horizon` is in us.
- The exact number of KV blocks is in your engine's log: `GPU KV cache size: N tokens`, divided by the block size.

For any latency model, this host differs from the replay in which the program was scored:

{differences}

Each method agrees with the program on this host too; the times of requests differ from the replay.

`defaults.yaml` has the program's alpha and beta coefficients, if it has any, as this branch's own backend reads them.
This backend does not read them.

For the main branch, emit it with `--target blis-4`: these files lack methods of that branch.
"""
_WHOSE = "With the limits of {name}"
_HOSTS = "With the host's own defaults: give those of your engine"
_BY_NAME = "It selects the deployment together with `--hardware` and `--tp`."
_READ = "The host reads the config.json of that model, and the hardware table's row of `--hardware`."
_ANY_NAME = "It may be any name: the program reads no deployment, or the one that is baked in."
_YOUR_NAME = "Your factory gets it, `--hardware` and `--tp` in its `sim.ModelHardwareConfig`."
_ADAPTERS = "return New<Name>Backend(coeffs, hw, <Name>Options{AdapterCost: o.adapterCost})"
_OPTIONS = """\
options := o.<name>
options.AdapterCost = o.adapterCost
return New<Name>Backend(coeffs, hw, options)"""


def steps(plan: Plan, deployments: Sequence[Deployment]) -> str:
    """How to register the backend on the target's branch, the command that runs it, and its limits."""
    first = deployments[0] if deployments else None
    named = names_deployment(plan, deployments)
    whose = _WHOSE.format(name=clean(first.name)) if first else _HOSTS
    names = _BY_NAME if named else _YOUR_NAME if plan.reads_deployment and not first else _ANY_NAME
    names = _READ if plan.host else names
    if plan.target.branch == "main":
        made = textwrap.indent(plan.name.fill(_OPTIONS if plan.settings else _ADAPTERS), " " * 11)
        command = replay_command(plan, first, named=named)
        return plan.name.fill(_MAIN).format(
            made=made, whose=whose, names=names, command=command,
            names_expected=", ".join(f'"{n}"' for n in sorted(["roofline", "trained-physics", plan.name.registered])),
            wiring=plan.name.fill(_WIRING).format() if plan.host else "",
            sizing=_SIZED if plan.host else _UNSIZED,
            offload="" if plan.host else _OFFLOAD,
        )  # fmt: skip
    return plan.name.fill(_STEPML).format(
        options=f", {options_literal(plan, settings_of(first))}" if plan.options else "",
        whose=whose,
        names=names,
        command=run_command(plan, first, named=named),
        differences="\n".join(f"- {text}" for text in BLIS_5_DIFFERS),
    )
