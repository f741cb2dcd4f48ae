"""`evolve emit --host blis-kernel`: the type, the kernel and the adapter agree, and the kernel has the product's memory."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from commands import evolve
from host_library import add_library

from evolve.host.deployments import of_experiment, of_names
from evolve.host.emit import fit_of, program_for
from evolve.run.program import load
from simulator.clock.pools import transfer_us
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.deployment import GIB, RESERVED_GIB, deployment_facts
from simulator.serving.load import EngineLimits, PoolLimits, tier_limits
from translate_go import BackendName, Deployment, build_and_test, compare_deployments, emit, find_go
from translate_go.kernel_host.files import Fit
from translate_go.kernel_host.rank import rank_of
from translate_go.target import MODULE
from translate_go.toolchain import go, gofmt, write_module
from translate_go.vectors import overhead_ticks, step_ticks

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain")

KERNEL = "blis-kernel"
GPU = "H100-SXM-80GB"
NAME = BackendName("my-fit")
LINEAR = complete(parse("def step_time(b, s, *, k: us/token = 0.5): return s.weights_us + k * b.tokens"))
KERNELS = program_for(load("champion"))
LIBRARY = complete(parse("def step_time(b, s, *, k: us = 900.0): return k * log1p(b.kv_sum) + k / s.max_num_seqs"))
NOTHING = complete(parse("def step_time(b, s, *, k: us = 0.25): return k"))
RUN = next(e for e in bundled_experiments() if e.id == "llama-2-70b-tp4-general")


@cache
def dense() -> Deployment:
    return of_names("llama-3.1-8b", GPU, 1)


@cache
def experts() -> Deployment:
    return of_names("mixtral-8x7b", GPU, 4)


def under(deployment: Deployment, **settings: object) -> Deployment:
    """The deployment with other settings of its engine."""
    assert deployment.source
    engine = replace(deployment.source.engine, **settings, given=frozenset(settings))  # type: ignore[arg-type]
    facts = deployment_facts(deployment.source.model, deployment.source.gpu, engine, deployment.name)
    name = f"{deployment.name} {' '.join(settings)}"
    return replace(deployment, name=name, facts=facts, source=replace(deployment.source, engine=engine))


def drafting() -> Deployment:
    return under(dense(), speculative_method="ngram", num_speculative_tokens=3, speculative_acceptance=0.7)


def files_of(program: Program, *deployments: Deployment, fit: Fit | None = None) -> dict[str, str]:
    return emit(program, target=KERNEL, deployments=deployments, name=NAME, fit=fit)


CASES = {
    "kernels": lambda: files_of(KERNELS, of_experiment(RUN), experts(), drafting()),
    "linear": lambda: files_of(LINEAR, dense(), under(dense(), prefix_caching=False, async_scheduling=True)),
    "library": lambda: files_of(LIBRARY, dense()),
    "nothing": lambda: files_of(NOTHING, dense()),
}


@needs_go
@pytest.mark.parametrize("what", CASES)
def test_emitted_go_is_clean_and_passes_its_own_tests(what: str, tmp_path: Path) -> None:
    checked = build_and_test(CASES[what](), tmp_path, target=KERNEL)
    assert checked.ok, checked.log


@needs_go
def test_model_and_kernel_agree_with_python_on_random_batches() -> None:
    found = compare_deployments(KERNELS, [dense(), drafting()], 400, 3, target=KERNEL, name=NAME)
    assert found.equal == found.times and found.same_bits == found.steps


@needs_go
def test_a_kernel_that_is_longer_is_noticed(tmp_path: Path) -> None:
    files = files_of(LINEAR, dense())
    kernel = files["myfit_kernel.go"]
    changed = kernel.replace("k.model.stepMicros(", "2 + k.model.stepMicros(")
    assert changed != kernel
    checked = build_and_test({**files, "myfit_kernel.go": changed}, tmp_path, target=KERNEL)
    assert not checked.ok and "by the kernel" in checked.log


_ASK = """\
package myfit

import (
	"fmt"
	"testing"

	"github.com/inference-sim/blis-schemas/kernel"
)

func TestAsk(t *testing.T) {
	k, err := %s()
	if err != nil {
		t.Fatal(err)
	}
	k.FabricGBPerS = %s
%s
}
"""


def asked(deployment: Deployment, questions: list[str], tmp_path: Path, fabric: str = "0") -> list[str]:
    """What Go prints for these expressions of the deployment's kernel `k`."""
    lines = "\n".join(f'\tfmt.Println("=", {question})' for question in (*questions, "kernel.Placement{}"))
    test = _ASK % (f"NewMyFitKernelFor{deployment.go_name}", fabric, lines)
    write_module({**files_of(KERNELS, deployment), "ask_test.go": test}, tmp_path, KERNEL)
    ran = go(tmp_path, "test", "./sim/latency", "-run", "TestAsk", "-v")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return re.findall(r"^= (.*)$", ran.stdout, re.MULTILINE)[:-1]


@pytest.mark.parametrize(
    "deployment",
    [
        dense,
        experts,
        lambda: of_experiment(RUN),  # its KV blocks are given
        lambda: of_names("gpt-oss-20b", GPU, 1),  # has windows
        lambda: under(experts(), pipeline_parallel=2),
        lambda: under(dense(), kv_cache_dtype="fp8", block_size=48, gpu_memory_utilization=0.83),
    ],
)
def test_the_hosts_rule_gives_the_kv_blocks_of_the_deployment(deployment) -> None:  # type: ignore[no-untyped-def]
    """The rule, of its sim/kernelmodel: device bytes x utilization, truncated, less fixed ones, over those of a block."""
    d = deployment()
    rank = rank_of(d.source, d.facts, "here")
    budget = int(float(int(d.source.gpu.usable_gib * 2**30)) * d.source.engine.gpu_memory_utilization)
    assert (budget - rank.fixed) // rank.block_bytes == d.facts["kv_blocks"]


@pytest.mark.parametrize("deployment", [dense, experts])
def test_what_is_no_weight_is_the_reserve_and_a_block(deployment) -> None:  # type: ignore[no-untyped-def]
    """Up to a block, which the number of blocks rounds down by."""
    d = deployment()
    rank = rank_of(d.source, d.facts, "here")
    assert 0 <= rank.other - RESERVED_GIB * GIB - rank.block_bytes <= rank.block_bytes


def test_the_weights_are_two_bytes_a_parameter_by_gpu() -> None:
    d = experts()
    rank = rank_of(d.source, d.facts, "here")  # type: ignore[arg-type]
    assert rank.weights == math.ceil(d.facts["model_params_b"] * 1e9 * 2 / 4)


def test_more_kv_blocks_than_memory_holds_are_refused() -> None:
    d = under(dense(), total_kv_blocks=40_000)
    with pytest.raises(InputError, match=r"^cannot emit .* 40000 KV blocks and the weights need \d+\.\d\d GiB more"):
        files_of(LINEAR, d)


@needs_go
def test_the_kernel_tells_memory_and_settings(tmp_path: Path) -> None:
    d = under(
        dense(), speculative_method="ngram", num_speculative_tokens=3, speculative_acceptance=0.7, max_num_seqs=64
    )
    engine = "k.Deployment().Engine"
    questions = ["k.KVBlocks()", f"{engine}.MaxNumSeqs", f"{engine}.Speculative.NumSpecTokens", "k.Resolved()"]
    questions += ["k.FixedBytes().Total()+k.KVBlocks()*k.SequenceVariableBytes(1)"]
    blocks, seats, drafts, resolved, used = asked(d, questions, tmp_path)
    assert (int(blocks), int(seats), int(drafts)) == (d.facts["kv_blocks"], 64, 3)
    assert resolved == "{1 1 1  false false false []}"  # n-gram drafts turn asynchronous scheduling off, as in vLLM
    assert d.source and d.source.gpu.usable_gib
    share = d.source.gpu.usable_gib * 2**30 * d.source.engine.gpu_memory_utilization
    assert int(used) == pytest.approx(share, abs=1)


@needs_go
def test_transfers_take_as_long_as_in_the_replay(tmp_path: Path) -> None:
    d = under(experts(), kv_offloading_size=64.0, kv_offload_gb_per_s=20.0, kv_offload_latency_us=150)
    facts, lengths, fabric = d.facts, np.array([1, 16, 500, 8191]), 25.0
    assert d.source and d.source.gpu.link_gb_per_s
    limits = EngineLimits(max_seqs=1, budget=2048, threshold=0, block=16, blocks=100)
    expected = []
    for rate in (d.source.gpu.link_gb_per_s, fabric):
        pools = PoolLimits(limits, limits, (1, 1), facts["kv_bytes_per_token"], rate * 1e3)
        expected += transfer_us(pools, lengths).tolist()
    tier = tier_limits(d.source.engine, facts)
    assert tier
    counts = [1, 3, 40]
    expected += [max(tier.least_us, math.ceil(n * tier.block_us)) for n in counts]
    questions = [
        *(f"k.PDTransferTime({n}, kernel.Placement{{}}, kernel.Placement{{Node: {node}}}).Microseconds()"
          for node in (0, 1) for n in lengths),
        *(f'k.TierTime("cpu_dram", kernel.DirectionToTier, {n} * k.SequenceVariableBytes(1), 1).Microseconds()'
          for n in counts),
    ]  # fmt: skip
    assert [int(us) for us in asked(d, questions, tmp_path, str(fabric))] == expected


@needs_go
def test_a_queue_of_transfers_takes_its_depth_times_as_long(tmp_path: Path) -> None:
    """1 MB over 50 GB/s, the shipped link of an H100, is 20 us."""
    one = 'k.TierTime("cpu_dram", kernel.DirectionFromTier, 1e6, %d)'
    assert asked(dense(), [one % 1, one % 3], tmp_path) == ["20µs", "60µs"]


def test_constants_are_measured_where_runs_decided_them() -> None:
    source = load("champion")
    assert source.record and source.record.constants
    fit = fit_of(source, KERNELS)
    shares = {name: of.data_share or 0.0 for name, of in source.record.constants.items()}
    assert fit.measured == {name for name, share in shares.items() if share > 0.5} and fit.name == "champion"
    text = files_of(KERNELS, dense(), fit=fit)["myfit_kernel.go"]
    found = dict(re.findall(r'\{"((?:step|queueing|output_token|completion)_time\.\w+)", "(\w+)"\}', text))
    assert found == {name: "measured" if name in fit.measured else "assumed" for name in shares}
    assert re.search(r'myFitScope = "hardware: .*; model: .* billion parameters; tp: .*"', text)


def test_priors_are_assumed_and_measured_kernels_measured() -> None:
    text = files_of(KERNELS, dense())["myfit_kernel.go"]
    for row in ('"s.issue_us", "assumed"', '"kernels.gemm", "measured"', '"transfer.host_link", "assumed"'):
        assert f"{{{row}}}" in text
    given = files_of(KERNELS, under(dense(), kv_offload_gb_per_s=20.0, total_kv_blocks=10_000))["myfit_kernel.go"]
    assert '{"transfer.host_link", "measured"}' in given and '{"memory.other", "measured"}' in given


def test_a_program_without_a_record_has_assumed_constants() -> None:
    assert fit_of(load("linear"), LINEAR).measured == frozenset()


@needs_go
@pytest.mark.parametrize("what", ["kernels", "linear"])
def test_the_program_of_the_guide_builds_and_runs(what: str, tmp_path: Path) -> None:
    program, deployment = (KERNELS, of_experiment(RUN)) if what == "kernels" else (LINEAR, dense())
    files = files_of(program, deployment)
    write_module({}, tmp_path, KERNEL)
    add_library(tmp_path, MODULE, main=True, newest=True)
    for folder in ("sim/myfit", "cmd/myfit"):
        (tmp_path / folder).mkdir(parents=True)
    for name, text in files.items():
        if name.endswith(".go"):
            (tmp_path / "sim" / "myfit" / name).write_text(text, "utf-8")
    (main,) = re.findall(r"```go\n(.*?)```", files["INTEGRATION.md"], re.DOTALL)
    (tmp_path / "cmd" / "myfit" / "main.go").write_text(main, "utf-8")
    assert "cmd/" not in gofmt(tmp_path).stdout
    ran = go(tmp_path, "run", "./cmd/myfit")
    assert not ran.returncode, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[-1] == "10 of 10 completed, 0 preemptions"
    facts = deployment.facts
    ttft_us = overhead_ticks(program, "queueing_time", facts, 500) + step_ticks(program, ((1, 500, 0, 500),), facts)
    assert lines[3].startswith(f"request_3: TTFT {ttft_us} us, E2E ")


def test_the_guide_has_the_patch_and_no_flag_of_other_hosts() -> None:
    text = files_of(LINEAR, dense(), experts())["INTEGRATION.md"]
    assert re.search(r"chosen, err := myfit\.NewMyFitForLlama_\w+Tp1\(\)", text) and "KernelModel: chosen," in text
    assert "--latency-model" not in text and "sim/latency" not in text and "stand-in" in text


NINE = " ".join(
    f"--deployment {m},{GPU},{tp}" for m in ("llama-2-7b", "llama-3.1-8b", "mixtral-8x7b") for tp in (2, 4, 8)
)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "1 to 8 deployments that are baked in, and there are 0"),
        (NINE.split(), "and there are 9"),
        (["--host-facts"], "Choose --host blis-4"),
    ],
)
def test_what_needs_no_or_many_deployments_is_refused(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "go"
    assert evolve("emit", "champion", "--host", KERNEL, "--out", out, *words) == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1 and not out.exists()


@needs_go
def test_check_compares_the_model_and_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = "--model", "llama-3.1-8b", "--hardware", "H100"
    assert evolve("emit", "linear", "--host", KERNEL, "--out", tmp_path / "go", *one, "--check") == 0
    out = capsys.readouterr().out
    assert "equal to the last bit: 20,058 of 20,058\n" in out  # 10,000 and 29 edge cases, each twice
    assert re.search(r"^check: the same through the kernel: [\d,]+ ns/op, 3 allocs/op$", out, re.MULTILINE)


def test_another_host_in_the_folder_replaces_the_files(tmp_path: Path) -> None:
    one = "--model", "llama-3.1-8b", "--hardware", "H100", "--out", tmp_path
    assert evolve("emit", "linear", "--host", KERNEL, *one) == 0
    assert {p.name for p in tmp_path.iterdir()} == {
        *("INTEGRATION.md", "fitted.go", "fitted_adapter.go", "fitted_kernel.go", "fitted_test.go")
    }
    assert evolve("emit", "linear", *one) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"INTEGRATION.md", "fitted.go", "fitted_test.go"}
