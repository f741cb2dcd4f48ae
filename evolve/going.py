"""`evolve emit`: a program as Go files in a folder, and whether they build and agree."""

from __future__ import annotations

import tempfile
from pathlib import Path

from evaluator.experiments import hardware_table, model_table
from evolve import __version__
from evolve.programs import Source
from simulator.deployment import deployment_facts
from simulator.errors import InputError, nearest
from simulator.experiment import Engine, Experiment
from simulator.language.key import key
from translate_go import Deployment, build_and_test, emit, find_go


def of_experiment(experiment: Experiment) -> Deployment:
    """The deployment that an experiment ran on."""
    return Deployment(experiment.id, experiment.facts, experiment.model, experiment.hardware)


def of_names(model: str, hardware: str, tp: int) -> Deployment:
    """A known model on a known GPU with the engine's defaults. Raises InputError for an unknown name."""
    facts = facts_of(model, hardware, Engine(tensor_parallel=tp))
    entry, gpu = model_table()[model], hardware_table()[hardware]
    return Deployment(f"{model} {gpu['name']} tp{tp}", facts, str(entry["id"]), str(gpu["name"]))


def facts_of(model: str, hardware: str, engine: Engine) -> dict[str, float]:
    """The deployment fields of a known model on a known GPU. Raises InputError for an unknown name."""
    models, gpus = model_table(), hardware_table()
    if model not in models:
        raise InputError(f"--model {model}: is not a known model: {nearest(model, sorted(models))}")
    if hardware not in gpus:
        raise InputError(f"--hardware {hardware}: is not a known GPU: {nearest(hardware, sorted(gpus))}")
    entry, gpu = models[model], gpus[hardware]
    config = {
        **entry["config"],
        "generation_config": entry.get("generation_config") or {},
        "_name_or_path": entry["id"],
    }
    return deployment_facts(config, gpu, engine, f"--model {model} --tp {engine.tensor_parallel}")


def provenance(source: Source) -> tuple[str, ...]:
    """Header lines: what the program is, what it was fitted on and what it reached there."""
    lines = [f"Program {source.name}, key {key(source.complete)}, engine {__version__}."]
    record = source.record
    if record is None:
        return (*lines, "No record of what it was fitted on.")
    lines += [
        f"Fitted {record['date']} by engine {record['engine']} on data {record['data']}.",
        "Signed errors of the mean in percent there (E2E, TTFT, ITL):",
    ]
    for name, row in record["errors_pct"].items():
        figures = ", ".join("-" if row[x] is None else f"{row[x]:+.1f}" for x in ("e2e", "ttft", "itl"))
        lines.append(f"  {name}: {figures}")
    return tuple(lines)


def emit_to(source: Source, target: str, out: Path, deployment: Deployment | None, verify: bool) -> int:
    """Write the Go files to `out`; with `verify` build and test them. Returns the exit status.

    Raises InputError if `out` cannot be written.
    """
    files = emit(source.complete, target=target, deployment=deployment, provenance=provenance(source))
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (out / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as e:
        raise InputError(f"{out}: cannot be written ({e.strerror}): choose another --out") from None
    print(f"{out}: {', '.join(sorted(files))}")
    if not verify:
        return 0
    if find_go() is None:
        print("check: no Go toolchain on PATH, and the extra [go] is not installed: nothing was built")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        checked = build_and_test(files, Path(folder), target=target)
    print("check: gofmt, vet and the recorded vectors: " + ("ok" if checked.ok else f"failed\n{checked.log}"))
    return 0 if checked.ok else 1
