"""INTEGRATION.md: how the generated backend is registered in BLIS."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from simulator.experiment.facts import left_out
from translate_go.deployment import Deployment, by_name
from translate_go.gotypes import constructor, deployment_variable
from translate_go.spelling import DEPLOYMENTS, clean, quoted
from translate_go.target import BLIS_5_DIFFERS, Plan
from translate_go.trees import TREES_FILE

_HEAD = """\
# Adding this latency model to BLIS

{about}

1. Copy {copied} to `sim/latency/`.
2. Run `go vet ./sim/latency` and `go test ./sim/latency -run Evolved -bench Evolved`: the test compares recorded
   batches and prompts with the times of the interpreter in which the program was scored, the benchmark times a batch of
   128 requests.
3. Register it, as below. If the host already has a backend called `evolved`, or another file of the package defines a
   name of `evolved.go` (`go vet` reports it), choose a different name.

`defaults.yaml` has the program's alpha and beta coefficients, if it has any. This backend does not read it.
"""

_ABOUT = (
    "{files} of package `latency`. The code needs Go 1.21 or later, imports only `sim` and the standard library, keeps "
    "no state between calls, and does not change batch or requests. It was written for target {target} (branch "
    "`{branch}`)."
)
_BAKED = (
    "The factory to register is `NewEvolvedBackend`; the facts of {name} are baked in. The constructor `NewEvolved` "
    "takes the facts of any other deployment."
)
_NO_FACTS = """
The factory to register is `NewEvolvedBackend`. The program reads no facts, so it is the same for all deployments.
"""
_OPEN = """
No deployment is baked in. Write a factory that fills `Deployment` and calls `NewEvolved`:

    func NewEvolvedBackend(_ sim.LatencyCoeffs, _ sim.ModelHardwareConfig) (sim.LatencyModel, error) {
        return NewEvolved(Deployment{ /* the facts named in evolved.go */ })
    }

or emit again for a deployment (an experiment, or model, hardware and tensor parallelism), which adds it.
"""
_OPEN_CURVES = """
The curves of measured kernels are part of `Deployment`: slices of 113 or 137 knots, in microseconds. `NewEvolved`
returns an error that names a curve if it is missing, has the wrong length, or holds a negative or infinite number or
NaN.
"""
_SEVERAL = """
Several deployments are baked in. The host passes nothing about the model to a backend that is not built in, so choose
the deployment at registration: give each backend its own name, and where the steps below return
`NewEvolvedBackend(coeffs, hw)`, return the model of that deployment instead:

{cases}
"""
_BY_NAME = (
    "`{file}` has {count} deployments by name, MODEL/GPU/tpN, for example `{name}`. The factory to register is "
    "`NewEvolvedBackend`: it selects the deployment by `--model`, `--hardware` and `--tp`, in upper or lower case, and "
    "returns an error if there is none. To choose one deployment at registration instead, return "
    '`NewEvolvedFor("NAME")`.'
)
_LIMITS = """
The engine's request limit is baked in too: max_num_seqs {limits} (the host's own default is 256). The host always has
chunked prefill, whatever the deployment was measured with. If your request limit differs, change a copy, which
`NewEvolved` checks:

    d := {copied}
    d.MaxNumSeqs = 256
    return NewEvolved(d)
"""
_CURVES = """
Curves are for one model on one GPU type at one tensor parallelism, and cannot be converted to another deployment. They
derive from tables under the Apache-2.0 licence: keep the source and copyright lines above them.
"""

_LEFT_OUT = """
The times leave out, for

{items}
"""

_MAIN = """
## Branch main

1. `sim/latency/latency.go`, in `NewLatencyModel`: add to the switch on `hw.Backend`

       case "evolved":
           return NewEvolvedBackend(coeffs, hw)

2. `sim/bundle.go`: add `"evolved"` to the set of valid latency backends. It feeds `--latency-model`, the per-pool flags
   and the error texts.
3. Run with `--latency-model evolved`.

Note:

- For a backend that is not built in, the command reads neither the model's config nor the hardware table: `--hardware`
  and `--tp` are not needed, and the flags for data and expert parallelism are rejected.
- Nor does it size the KV cache: without `--total-kv-blocks` there are 1,000,000 blocks, and without `--max-model-len`
  sequences have no length limit.
- The host must find its `defaults.yaml` (in the working directory or by `--defaults-filepath`).
- No coefficients are needed. `--alpha-coeffs` and `--beta-coeffs` must be given together, if at all, and must not be
  negative. Both without `--latency-model` silently select another backend.
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

3. `cmd/root.go`: add a string flag `--latency-backend`, stored in `Backend` before the cluster is built. Where the
   command tests whether all coefficients are zero (two places), also require that no backend was named: otherwise it
   looks for coefficients in `defaults.yaml` and stops. A dummy non-zero `--beta-coeffs` has the same effect without
   this edit.
4. Run with `--latency-backend evolved`.

For any latency model, this host differs from the replay in which the program was scored:

{differences}

Each method agrees with the program on this host too; the times of requests differ from the replay.
"""

_LIBRARY = """
## Without editing BLIS

The simulator is also a library: `sim.NewSimulator(cfg, kvStore, model)` takes any latency model. Call `InjectArrival`
for each request, then `Run`, and read the maps of its `Metrics` (`RequestTTFTs`, `RequestE2Es`, `RequestITLs`, in
microseconds). A small `main` in a new folder of the module is enough, on both branches. On stepml-experiments, requests
with tied times then differ from a run of its own command.
"""

_TREES = (
    "`{file}` has the ensemble of {count} trees that the step time reads: their nodes, and the walk through them. It "
    "belongs to this `evolved.go` and to no other."
)

_OTHER = "\nA file for one target lacks methods of the other: emit it for the branch that it is compiled in.\n"


def integration(plan: Plan, deployments: Sequence[Deployment]) -> str:
    """The text of the file: the steps for both branches, the target's own first."""
    target = plan.target
    stepml = _STEPML.format(differences="\n".join(f"- {text}" for text in BLIS_5_DIFFERS))
    branches = (_MAIN, stepml) if target.branch == "main" else (stepml, _MAIN)
    names = ["`evolved.go`"]
    if plan.reads_deployment and deployments and (plan.curves or by_name(deployments)):
        names.append(f"`{DEPLOYMENTS}`")
    if plan.batch.forest:
        names.append(f"`{TREES_FILE}`")
    files = f"{_together(names)} {'are files' if len(names) > 1 else 'is one file'}"
    about = _paragraph(_ABOUT.format(files=files, target=target.name, branch=target.branch))
    head = _HEAD.format(about=about, copied=f"{', '.join(names)} and `evolved_test.go`")
    choice, omissions = _choice(plan, deployments), _left_out(deployments)
    return "".join((head, *choice, *_trees(plan), *omissions, _OTHER, *branches, _LIBRARY))


def _together(names: Sequence[str]) -> str:
    """The names as a sentence lists them."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _trees(plan: Plan) -> list[str]:
    """The paragraph on the ensemble, if the program has one."""
    forest = plan.batch.forest
    return [f"\n{_paragraph(_TREES.format(file=TREES_FILE, count=len(forest.trees)))}\n"] if forest else []


def _left_out(deployments: Sequence[Deployment]) -> list[str]:
    """The paragraph on what the models have that no fact counts."""
    sentences = left_out((d.name, d.facts) for d in deployments)
    items = [textwrap.fill(f"- {text}.", 118, subsequent_indent="  ", break_long_words=False) for text in sentences]
    return [_LEFT_OUT.format(items="\n".join(items))] if items else []


def _choice(plan: Plan, deployments: Sequence[Deployment]) -> list[str]:
    """The paragraphs on how the deployment is chosen."""
    if not plan.reads_deployment:
        return [_NO_FACTS]
    if not deployments:
        return [_OPEN, _OPEN_CURVES] if plan.curves else [_OPEN]
    first = deployments[0]
    copied = deployment_variable(first)
    if by_name(deployments):
        text = _BY_NAME.format(file=DEPLOYMENTS, count=len(deployments), name=clean(first.name.lower()))
        parts = [f"\n{_paragraph(text)}\n"]
        copied = f"deployments[{quoted(first.name.lower())}]"
    elif len(deployments) > 1:
        cases = [f"    return {constructor(plan, d, deployments)}, nil  // {clean(d.name)}" for d in deployments]
        parts = [_SEVERAL.format(cases="\n".join(cases))]
    else:
        parts = [f"\n{_paragraph(_BAKED.format(name=clean(first.name)))}\n"]
    if "max_num_seqs" in plan.facts and (plan.curves or by_name(deployments)):
        limits = sorted({int(d.facts["max_num_seqs"]) for d in deployments})
        parts.append(_LIMITS.format(limits=", ".join(map(str, limits)), copied=copied))
    return [*parts, _CURVES] if plan.curves else parts


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)
