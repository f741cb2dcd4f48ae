"""INTEGRATION.md: how the generated backend is registered in BLIS."""

from __future__ import annotations

from translate_go.deployment import Deployment
from translate_go.plan import Plan
from translate_go.target import BLIS_5_DIFFERS

_HEAD = """\
# Adding this latency model to BLIS

`evolved.go` is one file of package `latency`. It needs Go 1.21 or later, imports `sim` and the standard library only,
keeps no state between calls, and treats batch and requests as read-only. It was written for target {target}
(branch `{branch}`).

1. Copy `evolved.go` and `evolved_test.go` to `sim/latency/`.
2. Run `go vet ./sim/latency` and `go test ./sim/latency -run Evolved -bench Evolved`: the test compares recorded
   batches and prompts with the times of the interpreter in which the program was scored, the benchmark times a batch of
   128 requests.
3. Register it, as below. Where the host already has a backend called `evolved`, or a name of `evolved.go` stands in
   another file of the package (`go vet` says so), choose another.

`defaults.yaml` has the program's alpha and beta coefficients where it has some. This backend does not read it.
"""

_BAKED = """
The factory to register is `NewEvolvedBackend`; the facts of {name} are baked in. The constructor `NewEvolved` takes the
facts of any other deployment.
"""
_NO_FACTS = """
The factory to register is `NewEvolvedBackend`. The program reads no fact of a deployment, so it is the same for all.
"""
_OPEN = """
No deployment is baked in. Write a factory that fills `Deployment` and calls `NewEvolved`:

    func NewEvolvedBackend(_ sim.LatencyCoeffs, _ sim.ModelHardwareConfig) (sim.LatencyModel, error) {
        return NewEvolved(Deployment{ /* the facts named in evolved.go */ })
    }

or emit again for a deployment (an experiment, or model, hardware and tensor parallelism), which adds it.
"""

_MAIN = """
## Branch main

1. `sim/latency/latency.go`, in `NewLatencyModel`: add to the switch on `hw.Backend`

       case "evolved":
           return NewEvolvedBackend(coeffs, hw)

2. `sim/bundle.go`: add `"evolved"` to the set of valid latency backends. It feeds `--latency-model`, the per-pool flags
   and the error texts.
3. Run with `--latency-model evolved`.

Mind the following.

- For a backend that is not built in, the command reads neither the model's config nor the hardware table: `--hardware`
  and `--tp` are not needed, and the flags of data and expert parallelism are refused.
- The KV cache is not sized either: without `--total-kv-blocks` it has 1,000,000 blocks, without `--max-model-len` there
  is no longest sequence.
- `defaults.yaml` of the host must be found (working directory or `--defaults-filepath`).
- No coefficients are needed. `--alpha-coeffs` and `--beta-coeffs` go together or not at all and must not be negative;
  both without `--latency-model` silently select another backend.
- Adapter (LoRA) costs are passed as an option, which this backend ignores.
"""

_STEPML = """
## Branch stepml-experiments

This branch chooses its backend by which settings are present, so it needs a name first.

1. `sim/config.go`: add `Backend string` to `ModelHardwareConfig`; the positional constructor can stay as it is.
2. `sim/latency/latency.go`: in `NewLatencyModel`, after the alpha coefficients are checked,

       if hw.Backend == "evolved" {{
           return NewEvolvedBackend(coeffs, hw)
       }}

3. `cmd/root.go`: a string flag `--latency-backend`, stored in `Backend` before the cluster is built. Where the command
   tests whether all coefficients are zero (two places), let it also ask that no backend was named: else it looks for
   coefficients in `defaults.yaml` and stops. A dummy non-zero `--beta-coeffs` has the same effect without this edit.
4. Run with `--latency-backend evolved`.

What differs on that host from the replay in which the program was scored, whatever the latency model:

{differences}

Each method agrees with the program there too; the times of requests differ from the replay.
"""

_LIBRARY = """
## Without editing BLIS

The simulator is also a library: `sim.NewSimulator(cfg, kvStore, model)` takes any latency model, then come
`InjectArrival` for each request, `Run`, and the maps of its `Metrics` (`RequestTTFTs`, `RequestE2Es`, `RequestITLs`, in
microseconds). A small `main` in a new folder of the module does, on both branches. On stepml-experiments, requests
whose times tie then differ from a run of its own command.
"""

_OTHER = "\nA file written for one target lacks methods of the other: emit it for the branch in which it is compiled.\n"


def integration(plan: Plan, deployment: Deployment | None) -> str:
    """The steps for both branches, the target's own first."""
    target = plan.target
    stepml = _STEPML.format(differences="\n".join(f"- {text}" for text in BLIS_5_DIFFERS))
    branches = (_MAIN, stepml) if target.branch == "main" else (stepml, _MAIN)
    head = _HEAD.format(target=target.name, branch=target.branch)
    factory = _NO_FACTS if not plan.facts else _BAKED.format(name=deployment.name) if deployment else _OPEN
    return "".join((head, factory, _OTHER, *branches, _LIBRARY))
