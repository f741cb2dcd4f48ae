"""Sections of INTEGRATION.md for one branch of the host: registration, the command, and what to know of it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from translate_go.deployment import Deployment, by_name
from translate_go.guide.command import flags, names_deployment, replay_command, run_command
from translate_go.guide.registration import Registration, registrations
from translate_go.spelling import clean
from translate_go.target import BLIS_5_DIFFERS, EmitPlan

_MAIN = """
## Registering it

1. `sim/latency/latency.go`, in `NewLatencyModel`: add to the switch on `hw.Backend`

{cases}

2. `sim/bundle.go`: add to `validLatencyBackends`

{valid}

   `--latency-model`, the flags of each pool and the error texts take the names from there.
3. `sim/bundle_test.go`: `TestValidLatencyBackendNames_ExcludesRemoved` counts the names. Change its line

       expected := []string{{"roofline", "trained-physics"}}

   to

       expected := []string{{{names_expected}}}

   The names are in order; a comment there that says how many they are needs {count} more, too.

4. `cmd/root.go`, in `registerSimConfigFlags`: the help text of `--latency-model` is written out, so it does not name
   the new backend until you add it. Nothing depends on it.
{wiring}5. `go vet ./... && go test ./sim/... ./cmd/... && go build -o blis .`

## Running it

{whose}:

    {command}
{others}
{names}
- `header.yaml` and `trace.csv` are a trace in the host's own format, TraceV2. `evolve simulate --experiments FILE
  --id ID --export tracev2 --out FOLDER` writes one of an experiment's load (of a shipped one without `--experiments`).
  The format has one prefix a request, so what the turns of conversations share is lost: a warning says what that costs.
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

{cases}

3. `cmd/root.go`: add a string flag `--latency-backend`, stored in `Backend` before the cluster is built. Where the
   command tests whether all coefficients are zero (two places), also require that no backend was named: otherwise it
   looks for coefficients in `defaults.yaml` and stops. A dummy non-zero `--beta-coeffs` has the same effect without
   this edit.
4. `go vet ./... && go test ./sim/... && go build -o blis .`

## Running it

{whose}:

    {command}
{others}
{names}
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
_OTHERS = """
With the others give these instead:

{flags}
"""
_THEIRS = """
Each deployment has limits of its own: give those of your engine.
"""
_ANY = """
`evolve emit --host-facts --out DIR` makes a backend that has no deployment baked in, and serves every model that the
host knows.
"""
_HOSTS = "With the host's own defaults: give those of your engine"
_BY_NAME = "It selects the deployment together with `--hardware` and `--tp`."
_READ = "The host reads the config.json of that model, and the hardware table's row of `--hardware`."
_CHECKED = (
    "The backend refuses another model, `--hardware` or `--tp` than the one that is baked in. It takes the names in "
    "`<name>Names`, in upper or lower case; what is left out is not compared."
)
_ANY_NAME = "It may be any name: the program reads no deployment."
_UNCHECKED = (
    "The deployment is the one whose backend `{flag}` names: `--model`, `--hardware` and `--tp` are not compared with "
    "it."
)
_YOUR_NAME = "Your factory gets it, `--hardware` and `--tp` in its `sim.ModelHardwareConfig`."


def steps(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """How to register the backend on the target's branch, the command that runs it, and its limits."""
    first = deployments[0] if deployments else None
    named = names_deployment(plan, deployments)
    whose = _WHOSE.format(name=clean(first.name)) if first else _HOSTS
    main = plan.target.branch == "main"
    names = _paragraph(f"- `--model` is mandatory. {_names(plan, deployments)}")
    backends = registrations(plan, deployments)
    if main:
        added = [backend.name for backend in backends]
        cases = "\n".join(_case(plan, backend) for backend in backends)
        return plan.name.fill(_MAIN).format(
            others=_others(plan, deployments, backends, named=named),
            cases=textwrap.indent(cases, " " * 7), whose=whose, names=names,
            valid="\n".join(f'       "{name}": true,' for name in added),
            command=replay_command(plan, first, backends[0].name, named=named),
            names_expected=", ".join(f'"{n}"' for n in sorted(["roofline", "trained-physics", *added])),
            count=len(added) if len(added) > 1 else "one",
            wiring=plan.name.fill(_WIRING).format() if plan.host else "",
            sizing=_SIZED if plan.host else _UNSIZED,
            offload="" if plan.host else _OFFLOAD,
        )  # fmt: skip
    cases = "\n".join(f'if hw.Backend == "{b.name}" {{\n    return {b.call}\n}}' for b in backends)
    return plan.name.fill(_STEPML).format(
        cases=textwrap.indent(cases, " " * 7),
        whose=whose,
        names=names,
        others=_others(plan, deployments, backends, named=named),
        command=run_command(plan, first, backends[0].name, named=named),
        differences="\n".join(f"- {text}" for text in BLIS_5_DIFFERS),
    )


def _others(plan: EmitPlan, deployments: Sequence[Deployment], backends: Sequence[Registration], *, named: bool) -> str:
    """How the command differs for deployments other than the first."""
    if len(deployments) < 2:
        return ""
    if by_name(deployments):
        return _THEIRS if plan.host else _THEIRS + _ANY
    names = [b.name for b in backends] if len(backends) > 1 else [backends[0].name] * len(deployments)
    lines = [flags(plan, d, name, named=named) for d, name in zip(deployments, names, strict=True)]
    return _OTHERS.format(flags=textwrap.indent("\n".join(lines[1:]), " " * 4))


def _case(plan: EmitPlan, backend: Registration) -> str:
    """The case of the main branch's switch that makes the backend."""
    options = [f"options := o.{plan.name.private}", "options.AdapterCost = o.adapterCost"] if plan.settings else []
    return "\n    ".join([f'case "{backend.name}":', *options, f"return {backend.call}"])


def _names(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """What the host's command has to say of the deployment."""
    if plan.host:
        return _READ
    if not plan.reads_deployment:
        return _ANY_NAME
    if not deployments:
        return _YOUR_NAME
    if by_name(deployments):
        return _BY_NAME
    if names_deployment(plan, deployments):
        return plan.name.fill(_CHECKED)
    return _UNCHECKED.format(flag="--latency-model" if plan.target.branch == "main" else "--latency-backend")


def _paragraph(text: str) -> str:
    """The text of a list as lines."""
    return textwrap.fill(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
