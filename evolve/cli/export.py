"""The command `export`."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import click

from evolve.cli.endings import finish
from evolve.cli.options import caps_options
from evolve.export.openevolve import CONFIG, EVALUATOR, PROGRAM, Checkpoint, write_checkpoint, write_task
from evolve.export.script import script
from evolve.export.source import entries, program_entry
from evolve.export.texts import program_json, program_snippet, run_json, run_snippet
from evolve.output.files import check_writable
from evolve.output.printing import prose
from evolve.output.terminal import say
from evolve.output.writing import STDOUT, write
from evolve.run.config_file import load_config
from evolve.run.folder import is_run
from evolve.run.measurements import of_files
from evolve.run.program import load, proposal_of
from evolve.summary.searched import searched
from simulator.common.errors import InputError
from simulator.language.measure import Caps

KINDS = ("openevolve", "openevolve-task", "sympy", "latex", "json")
SUFFIXES = {"sympy": ".py", "latex": ".tex", "json": ".json"}
SYMPY = "as sympy expressions."  # in the first line of such an export


@click.command()
@click.argument("spec", metavar="RUN|PROGRAM")
@click.option("--to", "kind", type=click.Choice(KINDS), required=True, help="What to write.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write [default: standard output]; for openevolve, the folder of checkpoint_N, or of the task.",
)
@click.option(
    "--config",
    "config_name",
    metavar="NAME|FILE",
    help="With openevolve-task: data and settings [default: those of RUN, else of the configuration default].",
)
@click.option(
    "--experiments", multiple=True, metavar="FILE", help="With openevolve-task: fit these experiments (repeatable)."
)
@click.option("--json", "as_json", is_flag=True, help="With openevolve: print what was written as JSON.")
@caps_options
def export(
    spec: str,
    kind: str,
    out: Path | None,
    config_name: str | None,
    experiments: tuple[str, ...],
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Write a run or a program for other tools.

    openevolve: a checkpoint folder for OpenEvolve 0.4, with every scored program of the run. openevolve-task: a folder
    from which `openevolve-run` evolves the program, or the run's champion, with our evaluator. sympy: a Python file
    with the expressions of the run's Pareto front, or of the program; it needs only sympy. latex: the table of the
    front and the champion's formula, or the program's formula. json: the output of `evolve archive --json` with the
    constants and formulas of each program, or those of the program.

    \b
    evolve export runs/0001 --to openevolve --out for-openevolve
    evolve export champion --to openevolve-task --experiments mine.yaml --out task
    evolve export champion --to sympy --out champion_sympy.py
    evolve export runs/0001 --to latex > front.tex
    evolve export runs/0001:137 --to json
    """
    if kind != "openevolve-task" and (config_name or experiments):
        option = "--config" if config_name else "--experiments"
        raise InputError(f"{option} only applies together with --to openevolve-task: leave it out")
    if kind == "openevolve":
        return _checkpoint(spec, out, as_json)
    if as_json:
        raise InputError("--json only applies together with --to openevolve: leave it out, or give --to json")
    if kind == "openevolve-task":
        return _task(spec, out, config_name, experiments, caps)
    if out:
        check_writable(out, "--out", SUFFIXES[kind])
        if out.is_file() and (other := _what_is_there(out, kind)):
            raise InputError(f"{out}: exists, and is {other}: choose another --out")
    text = _text(spec, kind, Caps(**caps))
    write(text, str(out or STDOUT), "--out")
    if out:
        prose(f"{out}: {len(text.encode()) / 1e3:.1f} kB")
    return 0


def _checkpoint(spec: str, out: Path | None, as_json: bool) -> int:
    if out is None:
        raise InputError("--to openevolve: writes a folder: name it with --out")
    if not is_run(Path(spec)):
        raise InputError(f"--to openevolve: {spec} is not a run: name the folder of one, as `evolve list` shows them")
    finish(write_checkpoint(searched(Path(spec)), out), as_json, _print)
    return 0


def _task(
    spec: str, out: Path | None, config_name: str | None, experiments: tuple[str, ...], caps: dict[str, int]
) -> int:
    """Write the task to evolve a program, or the champion of a run, by default on the data of its run."""
    if out is None:
        raise InputError("--to openevolve-task: writes a folder: name it with --out")
    if is_run(Path(spec)):
        spec = f"{spec}:{searched(Path(spec)).champion.id}"
    named = proposal_of(spec)
    config = named[0].config if named and not config_name else load_config(config_name or "default")
    data, limits = of_files(config.data, experiments), replace(config.caps, **caps)
    write_task(load(spec), replace(config, data=data, caps=limits), out)
    files = map(str, (out / PROGRAM, out / EVALUATOR, "--config", out / CONFIG))
    prose(f"{out}: to evolve {spec} with a MODEL of your own server (--api-base URL) or of OpenAI:")
    say(
        f"  {shlex.join(['openevolve-run', *files])} --iterations 20 --primary-model MODEL"
    )  # in one line, to be pasted
    return 0


def _print(written: Checkpoint) -> None:
    prose(
        f"{written.path}: {written.programs} scored programs, {written.bytes / 1e6:.1f} MB; best program "
        f"{written.champion}, the champion. {written.rejected} rejected candidates are left out."
    )


def _what_is_there(out: Path, kind: str) -> str:
    """Describe a file that --out would replace; "" if it is an export."""
    if kind == "sympy" and SYMPY not in out.read_text("utf-8", "replace"):
        return "no export"
    program = out.with_suffix(".py")
    return f"the record of {program}" if kind == "json" and program.is_file() else ""


def _text(spec: str, kind: str, caps: Caps) -> str:
    """The text of a kind that is one file."""
    if is_run(Path(spec)):
        found = searched(Path(spec))
        if kind == "sympy":
            return script(f"The champion and the front of {found.run.path}", entries(found))
        return run_snippet(found) if kind == "latex" else json.dumps(run_json(found), indent=1, allow_nan=False) + "\n"
    entry = program_entry(spec, caps)
    if kind == "sympy":
        return script(f"The program {entry.name}", [entry])
    return program_snippet(entry) if kind == "latex" else json.dumps(program_json(entry), indent=1) + "\n"
