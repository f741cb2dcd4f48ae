"""Options that several commands share, and the programs and experiments that they name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from evolve.cli.pools import pool_options
from evolve.ingest.options import parse_overrides
from evolve.output.columns import Columns, RowLike
from evolve.output.files import check_writable
from evolve.output.progress import tell_compilation
from evolve.output.terminal import say, warn
from evolve.output.writing import FORMATS, STDOUT, write
from evolve.run import program as programs
from evolve.run.data import Named, experiments_of, only_named
from evolve.run.folder import RunFolder, is_run, open_run
from evolve.run.program import Source
from simulator.common.errors import InputError, shown
from simulator.common.text import counted, listed
from simulator.language.measure import Caps
from simulator.serving.bundled import BUNDLED, FILES, bundled_experiments, load_specs
from simulator.serving.engine import Setting
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.spec import Spec

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_WRITTEN = {
    "csv": "Write {what} to this file, or to standard output for -.",
    "parquet": "The same as Parquet.",
    "latex": "Write the most important columns as a LaTeX table.",
}


quiet_flag = click.option("--quiet", is_flag=True, help="No progress line.")


def _has_flag(name: str) -> bool:
    """Return True if the running command was given this flag."""
    context = click.get_current_context(silent=True)
    return bool(context and context.params.get(name))


def _without_flag(command: Callable[..., Any], flag: Decorator, name: str) -> Callable[..., Any]:
    """The command with a flag that it does not take itself: `_has_flag` returns it while the command runs."""

    @flag
    @wraps(command)
    def without(**options: Any) -> Any:
        del options[name]
        return command(**options)

    return without


def gathered(
    name: str, prefix: str, options: Mapping[str, Decorator], made: Callable[[dict[str, Any]], Any] = dict
) -> Decorator:
    """Add these options; the command receives `made` of the given values as one parameter.

    options: by their key in that value. Their parameters have these names after `prefix`.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_one(**given: Any) -> Any:
            values = {key: given.pop(f"{prefix}{key}") for key in options}
            values = {key: value for key, value in values.items() if value not in (None, ())}
            return command(**{name: made(values)}, **given)

        added: Callable[..., Any] = with_one
        for option in reversed([*options.values()]):
            added = option(added)
        return added

    return decorated


def quiet() -> bool:
    """Return True if the running command has --quiet."""
    return _has_flag("quiet")


tell_compilation(quiet)  # all commands that replay import this module


def quiet_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --quiet, which the command need not take: see `quiet`."""
    return _without_flag(command, quiet_flag, "quiet")


def explaining() -> bool:
    """Return True if the running command has --explain."""
    return _has_flag("explain")


def explain_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --explain, which the command need not take: see `explaining`."""
    flag = click.option("--explain", is_flag=True, help="Explain the terms of the tables, too.")
    return _without_flag(command, flag, "explain")


def verbose() -> bool:
    """Return True if the running command has -v."""
    return _has_flag("verbose")


def verbose_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add -v, which the command need not take: see `verbose`. For commands whose output leaves something out."""
    flag = click.option("-v", "--verbose", is_flag=True, help="Print all rows, tables and warnings.")
    return _without_flag(command, flag, "verbose")


def caps_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --max-operations and so on; the command receives the given ones as one mapping, `caps`."""
    return caps_options_from(Caps(), ", or the configuration's")(command)


def caps_options_from(caps: Caps, or_else: str = "") -> Decorator:
    """`caps_options` whose help names these defaults, and what else may replace them."""
    kind, text = click.IntRange(min=0), "Maximum number of {} in a program [default: {}{}]."
    options = {
        name: click.option(f"--max-{name}", f"max_{name}", type=kind, help=text.format(name, most, or_else))
        for name, most in asdict(caps).items()
    }
    return gathered("caps", "max_", options)


# Suffixes of the files that a table may replace.
SUFFIXES = {"csv": (".csv", ".tsv", ".txt"), "parquet": (".parquet",), "latex": (".tex", ".txt")}
SPREADSHEETS = (".xls", ".xlsx", ".ods")


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files that a command was asked to write its table to, by format; `-` is standard output."""

    files: Mapping[str, str]

    @property
    def on_stdout(self) -> bool:
        """True if a table goes to standard output, which then has nothing else."""
        return STDOUT in self.files.values()

    def check(self, as_json: bool) -> None:
        """Raise InputError, before any work, if two outputs share standard output or a file cannot be written."""
        printed = [f"--{name}" for name, file in self.files.items() if file == STDOUT]
        if as_json:
            printed.append("--json")
        if self.on_stdout and len(printed) > 1:
            raise InputError(f"{' and '.join(printed)} both go to standard output: name a file for one of them")
        if self.files.get("parquet") == STDOUT:
            raise InputError("--parquet cannot write to standard output; give a file")
        for name, file in self.files.items():
            if Path(file).suffix in SPREADSHEETS:
                raise InputError(f"--{name} {file}: is no spreadsheet: write --csv FILE.csv, which spreadsheets open")
            if file != STDOUT:
                check_writable(Path(file), f"--{name}", *SUFFIXES[name])

    def write(self, columns: Columns, rows: Iterable[RowLike]) -> None:
        """Write these rows to every file. Only Parquet imports pandas, which takes a second."""
        rows = list(rows) if self.files else []
        for format_, file in self.files.items():
            if format_ == "parquet":
                importlib.import_module("evolve.output.frames").write_parquet(columns, rows, file)
            else:
                write(FORMATS[format_](columns, rows), file, f"--{format_}")
            if file != STDOUT:
                say(f"{file}: {counted(len(rows), 'row')}", err=True)  # standard output may have JSON


def tables_options(what: str) -> Decorator:
    """Add --csv, --parquet and --latex; the command receives them as `tables`. `what`: the rows of the table."""
    options = {
        name: click.option(f"--{name}", metavar="FILE" if name == "parquet" else "FILE|-", help=text.format(what=what))
        for name, text in _WRITTEN.items()
    }
    return gathered("tables", "", options, _tables)


def _tables(files: Mapping[str, str]) -> TableFiles:
    tables = TableFiles(files)
    tables.check(_has_flag("as_json"))
    return tables


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `run` and `pilot` share."""
    seed = "Seed of the search: same seed, same archive."
    experiments = "Fit these experiments instead of the bundled ones (repeatable)."
    config = "Bundled configuration (see `evolve list`) or a YAML file."
    budget = "Distinct candidates to fit [default: as in --config]."
    options: list[Callable[..., Any]] = [
        click.option("--config", "config_name", default="default", show_default=True, metavar="NAME|FILE", help=config),
        click.option("--budget", type=click.IntRange(min=1), help=budget),
        click.option("--seed", type=click.IntRange(min=0), help=seed),
        pool_options,
        click.option("--out", type=click.Path(path_type=Path), help="Run folder to create [default: runs/NNNN]."),
        click.option("--experiments", multiple=True, metavar="FILE", help=experiments),
        list_option("--workloads", "workloads", "A,B", "Fit only these workloads (repeatable)."),
        exclude_option("Do not fit these experiments (repeatable)."),
        click.option("--evolve", "methods", type=click.Choice(["step", "queueing", "both"]), help="Methods to evolve."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
        quiet_flag,
    ]
    command = caps_options(command)
    for option in reversed(options):
        command = option(command)
    return command


def two_files(_context: click.Context, option: click.Parameter, value: Any) -> Any:
    """The value of an option of two files. Raises InputError if the second is another option's name."""
    pairs = value if option.multiple else [value] if value else []
    for _, second in pairs:
        if str(second).startswith("--"):
            raise InputError(f"{option.opts[0]} {option.metavar}: takes two files; {second} came in place of DATA")
    return value


def list_option(flag: str, name: str, metavar: str, text: str) -> Decorator:
    """Add an option of one or more words: separated by commas, by repeating the option, or both.

    The command receives all of them under `name`, in order and each once, as a tuple that is empty without the option.
    """
    return click.option(flag, name, metavar=metavar, multiple=True, callback=_words, help=text)


def engine_option(text: str) -> Decorator:
    """Add --engine KEY=VALUE; the command receives `settings`, the values by name of the setting, checked."""
    return click.option("--engine", "settings", metavar="KEY=VALUE", multiple=True, callback=_settings, help=text)


def _settings(context: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> Mapping[str, Setting]:
    """The settings. Raises InputError if they have the one for which the command has --tp."""
    settings = parse_overrides(value)
    if "tensor_parallel" in settings and any("--tp" in option.opts for option in context.command.params):
        raise InputError("--engine tensor_parallel: is --tp here: give --tp")
    return settings


def ids_option(text: str = "Only these experiments (repeatable).") -> Decorator:
    """Add --id, which names experiments; the command receives `ids`."""
    return list_option("--id", "ids", "ID,ID", text)


def exclude_option(text: str = "Not these experiments (repeatable).") -> Decorator:
    """Add --exclude, which names experiments; the command receives `exclude`."""
    return list_option("--exclude", "exclude", "ID,ID", text)


def _words(_context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The words of an option of `list_option`. Raises InputError if it names none."""
    for text in value:
        if not text.replace(",", "").strip():
            raise InputError(f"{option.opts[0]} {shown(text)}: names nothing: give {option.metavar}, or leave it out")
    return tuple(dict.fromkeys(word.strip() for text in value for word in text.split(",") if word.strip()))


def load(program: str, caps: dict[str, int] | None) -> Source:
    """Load the program that the user names. A file must keep to the caps, if there are any."""
    return programs.load(program, None if caps is None else Caps(**caps))


def named_experiments(
    file: str | None, ids: Sequence[str], instead: str = "", exclude: Sequence[str] = ()
) -> list[Experiment]:
    """The experiments of a file, or the bundled ones; only those in `ids`, if there are any, but those in `exclude`.

    Raises InputError for an unknown id, with what can be given `instead`, and for what no engine can run among these.
    """
    if file:
        return [deploy(spec) for spec in named_specs(file, ids, instead, exclude)]
    return only_named(bundled_experiments(), ids, exclude, BUNDLED, instead)


def run_of(source: Source) -> RunFolder | None:
    """The run of a program, if its folder exists."""
    path = source.record.run if source.record else None
    return open_run(Path(path)) if path and is_run(Path(path)) else None


def experiments_for(source: Source, file: str | None, ids: Sequence[str]) -> list[Experiment]:
    """`named_experiments`; without a file, all experiments of the program's run, if it has one.

    Print a warning if it gets the bundled experiments although it was fitted on others.
    """
    if run := None if file else run_of(source):
        return experiments_in(run, ids)
    elsewhere = "" if file else _fitted_elsewhere(source)
    if elsewhere and not ids:
        warn(f"these are the runs that the project ships: {elsewhere}")
    return named_experiments(file, ids, elsewhere)


def _fitted_elsewhere(source: Source) -> str:
    """The fitted runs of a program and the remedy, if no shipped file has these runs; else ""."""
    fitted = source.record.fitted if source.record else ()
    if {*fitted} <= {e.id for e in experiments_of(FILES)}:
        return ""
    return f"{source.name} was fitted on {listed(fitted, 3)}: give --experiments with their file"


def experiments_in(run: RunFolder, ids: Sequence[str]) -> list[Experiment]:
    """The experiments of these ids, all if there are none, that a run fits or predicts. Raises InputError."""
    fitted, others = run.experiments()
    return only_named([*fitted, *others], ids, (), (*run.config.data.files, *run.config.data.predict_files))


def named_specs(file: str | None, ids: Sequence[str], instead: str = "", exclude: Sequence[str] = ()) -> list[Spec]:
    """The specs of a file, or of the bundled ones, as `named_experiments`."""
    files: Sequence[str] = [file] if file else BUNDLED
    return only_named([spec for name in files for spec in load_specs(name)], ids, exclude, files, instead)


def named_experiment(file: str | None, name: str, instead: str = "") -> Experiment:
    """The one experiment of that id. Raises InputError for several and for an unknown one."""
    if "," in name:
        raise InputError(f"--id {name}: is not one experiment: name one experiment")
    [experiment] = named_experiments(file, [name], instead)
    return experiment


def only_id(file: str) -> str:
    """The id of the one experiment of a file. Raises InputError if it has several."""
    return only_one(named_experiments(file, []), file).id


def only_one(experiments: Sequence[Named], file: str) -> Named:
    """The one experiment of these, of a file. Raises InputError if there are several."""
    if len(experiments) > 1:
        remedy = f"name one with --id, {experiments[0].id} say"
        raise InputError(f"--experiments {file}: has {len(experiments)} experiments: {remedy}")
    return experiments[0]


def whole_names(model: str | None, hardware: str | None, tp: int | None, why: str = "") -> None:
    """Raises InputError unless model and GPU are given together; `why` --tp means nothing without them."""
    if bool(model) != bool(hardware):
        raise InputError("--model and --hardware go together: give both")
    if tp is not None and not model:
        raise InputError(f"--tp needs --model and --hardware: {why}")
