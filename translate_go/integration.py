"""INTEGRATION.md: how the generated backend is registered in BLIS."""

from __future__ import annotations

from translate_go.deployment import Deployment
from translate_go.target import Target

_HEAD = """\
# Adding this latency model to BLIS

`evolved.go` is one file of package `latency`. It needs Go 1.21 or later, imports `sim` and the standard library only,
keeps no state between calls, and treats batch and requests as read-only. It was written for target {target}
(branch `{branch}`).

1. Copy `evolved.go` and `evolved_test.go` to `sim/latency/`.
2. Run `go vet ./sim/latency` and `go test ./sim/latency -run Evolved`: the test compares recorded batches and prompts
   with the times of the interpreter in which the program was scored.
"""

_FACTORY = """
The factory to register is `NewEvolvedModel`; the facts of {name} are baked in. The constructor `NewEvolved` takes the
facts of any other deployment.
"""
_NO_FACTORY = """
No deployment is baked in. Write a factory that fills `Deployment` and calls `NewEvolved`:

    func NewEvolvedModel(_ sim.LatencyCoeffs, _ sim.ModelHardwareConfig) (sim.LatencyModel, error) {
        return NewEvolved(Deployment{ /* the facts named in evolved.go */ })
    }

or emit again for a deployment (an experiment, or model, hardware and tensor parallelism), which adds it.
"""

_MAIN = """
## Branch main

1. `sim/latency/latency.go`, in `NewLatencyModel`: add to the switch on `hw.Backend`

       case "evolved":
           return NewEvolvedModel(coeffs, hw)

2. `sim/bundle.go`: add `"evolved"` to the set of valid latency backends. It feeds `--latency-model`, the per-pool flags
   and the error texts.
3. Run with `--latency-model evolved`.

Mind the following. For a backend that is not built in, the command reads neither the model's config nor the hardware
table, so `--hardware` and `--tp` are not needed, and the KV cache is not sized: give `--total-kv-blocks`, and
`--max-model-len` if it matters. `defaults.yaml` must be found (working directory or `--defaults-filepath`). Do not give
`--alpha-coeffs` and `--beta-coeffs` without `--latency-model`: that selects another backend. Adapter (LoRA) costs are
passed as an option, which this backend ignores.
"""

_STEPML = """
## Branch stepml-experiments

This branch chooses its backend by which settings are present, so it needs a name first.

1. `sim/config.go`: add `Backend string` to `ModelHardwareConfig`.
2. `sim/latency/latency.go`: in `NewLatencyModel`, after the alpha coefficients are checked,

       if hw.Backend == "evolved" {
           return NewEvolvedModel(coeffs, hw)
       }

3. `cmd/root.go`: a string flag `--latency-backend`, stored in `Backend` before the cluster is built. Where the command
   tests whether all coefficients are zero, let it also ask that no backend was named: else it goes looking for
   coefficients in `defaults.yaml` and stops. A dummy non-zero `--beta-coeffs` has the same effect without this edit.

What differs on that host, whatever the latency model: a completed request gets one more inter-token entry (last step
plus per-token time), there is no overhead at completion, and requests queued in the same microsecond at an idle
instance start parallel chains of steps. Request times therefore differ from the replay; each method does not.
"""


def integration(target: Target, deployment: Deployment | None) -> str:
    """The steps for both branches, the target's own first."""
    head = _HEAD.format(target=target.name, branch=target.branch)
    factory = _FACTORY.format(name=deployment.name) if deployment else _NO_FACTORY
    other = (
        "\nA file written for one target lacks methods of the other: emit it for the branch in which it is compiled.\n"
    )
    branches = (_MAIN, _STEPML) if target.branch == "main" else (_STEPML, _MAIN)
    return head + factory + other + "".join(branches)
