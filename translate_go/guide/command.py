"""The limits of a deployment's engine, and the host's command line with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from shlex import quote

from simulator.serving.limits import HOST_ENGINE
from translate_go.deployment import Deployment, checks_names
from translate_go.spelling import clean
from translate_go.target import THRESHOLD, EmitPlan

ANY_MODEL = "meta-llama/llama-2-7b-hf"  # for a program that reads no deployment
HORIZON_US = 86_400_000_000  # a day: longer than any trace with its backlog


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What bounds an engine. The defaults are the host's own for a backend that it did not build.

    `max_model_len` (tokens) 0 is no limit, `long_prefill_token_threshold` (tokens) 0 is none.
    """

    kv_blocks: int = HOST_ENGINE["total_kv_blocks"]
    block_size: int = HOST_ENGINE["block_size"]
    max_num_seqs: int = HOST_ENGINE["max_num_seqs"]
    max_num_batched_tokens: int = HOST_ENGINE["max_num_batched_tokens"]
    max_model_len: int = HOST_ENGINE["max_model_len"]
    long_prefill_token_threshold: int = HOST_ENGINE["long_prefill_token_threshold"]


def limits_of(deployment: Deployment | None) -> HostLimits:
    """The engine's limits among the deployment's facts; the host's defaults for the others, and without one."""
    if deployment is None:
        return HostLimits()
    facts = deployment.facts
    names = ("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    given = {name: int(facts[name]) for name in names if name in facts}
    limits = HostLimits(**given, long_prefill_token_threshold=deployment.long_prefill_token_threshold)
    return replace(limits, max_model_len=longest(limits.max_model_len, limits.kv_blocks, limits.block_size))


def longest(max_model_len: int, kv_blocks: int, block_size: int) -> int:
    """The `max_model_len` (tokens, 0: no limit) that neither engine nor host refuses: at most the whole KV cache."""
    return min(max_model_len, kv_blocks * block_size)


def settings_of(deployment: Deployment | None) -> dict[str, float]:
    """These limits by the names of the language's fields."""
    return {name: float(value) for name, value in asdict(limits_of(deployment)).items()}


def replay_command(plan: EmitPlan, deployment: Deployment | None, backend: str, *, named: bool = False) -> str:
    """The command of the main branch that replays a trace with the backend of this name, over several lines.

    `named`: the backend finds or checks its deployment by model, GPU and tensor parallelism, so these are given too.
    """
    limits = limits_of(deployment)
    return _command(
        f"./blis replay {_model(deployment, named=named)} --latency-model {backend}",
        "--trace-header header.yaml --trace-data trace.csv --results-path results.json",
        *_bounds(plan, limits),
        f"{plan.target.flags['max_model_len']} {limits.max_model_len} {_threshold(limits)}",
        f"--horizon {HORIZON_US} --cache-signal-delay 0 --snapshot-refresh-interval 0",
    )


def run_command(plan: EmitPlan, deployment: Deployment | None, backend: str, *, named: bool = False) -> str:
    """The command of the frozen branch that runs a trace with the backend of this name, over several lines."""
    limits = limits_of(deployment)
    return _command(
        f"./blis run {_model(deployment, named=named)} --latency-backend {backend}",
        "--workload traces --workload-traces-filepath trace.csv --results-path results.json",
        *_bounds(plan, limits),
        f"{_threshold(limits)} --horizon {HORIZON_US}",
    )


def flags(plan: EmitPlan, deployment: Deployment, backend: str, *, named: bool) -> str:
    """What names a deployment, its backend and its limits on either branch's command line, in one line."""
    limits, main = limits_of(deployment), plan.target.branch == "main"
    longest_flag = [f"{plan.target.flags['max_model_len']} {limits.max_model_len}"] if main else []
    option = "--latency-model" if main else "--latency-backend"
    return " ".join([
        _model(deployment, named=named), f"{option} {backend}", *_bounds(plan, limits), *longest_flag,
        _threshold(limits),
    ])  # fmt: skip


def example_command(plan: EmitPlan, deployments: Sequence[Deployment]) -> str:
    """The command of the main branch that runs its own workload with the backend, for the first of the deployments.

    It has that deployment's limits, unless the host computes them from the model's configuration.
    """
    first = deployments[0] if deployments else None
    model = _model(first, named=names_deployment(plan, deployments)) if first else f"--model {ANY_MODEL}"
    command = f"./blis run {model} --latency-model {plan.name.registered}"
    if first is None or plan.host:
        return command
    limits = limits_of(first)
    return _command(
        command, *_bounds(plan, limits), f"{plan.target.flags['max_model_len']} {limits.max_model_len}", indent=2
    )


def names_deployment(plan: EmitPlan, deployments: Sequence[Deployment]) -> bool:
    """Whether the host's command names the deployment by model, GPU and tensor parallelism."""
    return plan.reads_deployment and (bool(plan.host) or checks_names(deployments))


def _command(*lines: str, indent: int = 6) -> str:
    return f" \\\n{' ' * indent}".join(lines)


def _bounds(plan: EmitPlan, limits: HostLimits) -> list[str]:
    """The flags of the KV cache and of a batch, a line each."""
    pairs = ("kv_blocks", "block_size"), ("max_num_seqs", "max_num_batched_tokens")
    return [" ".join(f"{plan.target.flags[name]} {getattr(limits, name)}" for name in pair) for pair in pairs]


def _threshold(limits: HostLimits) -> str:
    return f"{THRESHOLD} {limits.long_prefill_token_threshold}"


def _model(deployment: Deployment | None, *, named: bool) -> str:
    """The flags that name the deployment."""
    if deployment is None:
        return "--model MODEL"
    model = f"--model {quote(clean(deployment.model or deployment.name).lower())}"
    return f"{model} --hardware {quote(clean(deployment.host_gpu))} --tp {deployment.tp}" if named else model
