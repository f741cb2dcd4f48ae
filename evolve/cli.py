"""The command line: what each command takes, and one place where errors become a line and an exit status.

Exit status: 0 done; 1 failed, or a gate said no; 2 anything the user supplied was wrong; 130 interrupted.
Everything heavy is imported inside the commands, so that `evolve --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from evolve import __version__

# One BLAS thread: sums in one order, whatever the machine. Set before numpy is imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

FIT_METHODS = ("auto", "linear", "lbfgsb", "neldermead", "cma", "all")  # evaluator.fit.METHODS, and all of them
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def main() -> None:
    """Entry point of the console script."""
    try:
        status = run_command(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = _fail("interrupted", 130)
    except OSError as e:  # a full disk, a pipe whose reader went away
        status = _fail(f"standard output: {e.strerror}", 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def run_command(args: list[str]) -> int:
    """Run one command line and return its exit status; errors are one line on stderr."""
    from simulator.errors import InputError

    try:
        return int(cli.main(args, prog_name="evolve", standalone_mode=False) or 0)
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.exceptions.NoArgsIsHelpError as e:
        print(e.format_message())
        return 0
    except click.UsageError as e:
        command = e.ctx.command_path if e.ctx else "evolve"
        return _fail(f"{e.format_message().rstrip('.')}: see `{command} --help`", 2)
    except click.ClickException as e:
        return _fail(e.format_message(), 2)
    except InputError as e:
        return _fail(str(e), 2)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(message: str, status: int) -> int:
    print("evolve: " + " ".join(message.split()), file=sys.stderr)
    return status


@click.group(context_settings=CONTEXT, epilog="Start with: evolve run --budget 1000")
@click.version_option(__version__, prog_name="evolve")
def cli() -> None:
    """Evolve latency models of LLM serving from measurements, and take the winner home as Go.

    A search proposes small programs (step time, queueing delay), fits their constants, scores each by replaying
    real serving runs, and keeps a Pareto archive. PROGRAM is a file, RUN:ID, or a shipped name such as `champion`.
    """


def caps_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--max-operations and so on, handed to the command as one mapping `caps` of those that are given."""
    from dataclasses import asdict

    from simulator.language.measure import Caps

    defaults = asdict(Caps())

    @wraps(command)
    def with_caps(**options: Any) -> Any:
        given = {name: options.pop(f"max_{name}") for name in defaults}
        return command(caps={name: most for name, most in given.items() if most is not None}, **options)

    for name, most in reversed(defaults.items()):
        text = f"Most {name} a program may have [default: {most}, or the configuration's]."
        with_caps = click.option(f"--max-{name}", type=click.IntRange(min=0), help=text)(with_caps)
    return with_caps


def _load(program: str, caps: dict[str, int]) -> Any:
    """The program that the user names, held to the caps if it is a file."""
    from evolve.programs import load
    from simulator.language.measure import Caps

    return load(program, Caps(**caps))


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `run` and `pilot` share."""
    seed = "Seed of the search: same seed, same archive."
    workers = "Processes [default: all cores]; changes nothing but speed."
    experiments = "Fit these experiments instead of the bundled ones (repeatable)."
    config = "Bundled configuration (see `evolve list`) or a YAML file."
    options = [
        click.option("--config", "config_name", default="default", show_default=True, metavar="NAME|FILE", help=config),
        click.option("--budget", type=click.IntRange(min=1), help="Distinct candidates to fit."),
        click.option("--seed", type=click.IntRange(min=0), help=seed),
        click.option("--workers", type=click.IntRange(min=1), help=workers),
        click.option("--out", type=click.Path(path_type=Path), help="Run folder to create [default: runs/NNNN]."),
        click.option("--experiments", multiple=True, metavar="FILE", help=experiments),
        click.option("--workloads", metavar="A,B", help="Fit only these workloads."),
        click.option("--exclude", metavar="ID,ID", help="Do not fit these experiments."),
        click.option("--evolve", "methods", type=click.Choice(["step", "queueing", "both"]), help="What may change."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
        click.option("--quiet", is_flag=True, help="No progress line."),
    ]
    command = caps_options(command)
    for option in reversed(options):
        command = option(command)
    return command


@cli.command()
@click.option("--models", metavar="A,B", help="Fit only these models (Hugging Face id or alias).")
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True,
              help="Runs under as many seeds, and the spread of what they reach.")  # fmt: skip
@run_options
def run(models: str | None, repeats: int, **options: Any) -> int:
    """Search for latency models and report the best.

    \b
    evolve run --budget 1000                      the bundled measurements
    evolve run --config smoke                    half a minute
    evolve run --models llama-2-7b,llama-2-70b   two of the models
    evolve run --experiments mine.yaml --out runs/mine
    evolve run --repeats 5                       seeds 0 to 4: how much of it is luck?
    """
    config = _config(options, models)
    if repeats > 1:
        from evolve.repeats import start

        return _repeat(start(config, repeats, options["out"]), options["workers"], options["as_json"], options["quiet"])
    return _search(config, options)


@cli.command()
@click.option("--model", required=True, help="Hugging Face id or alias, e.g. llama-2-7b.")
@click.option("--generations", type=click.IntRange(min=1), default=100, show_default=True, help="Of each repeat.")
@click.option("--repeats", type=click.IntRange(min=2), default=3, show_default=True, help="Runs, each with its seed.")
@run_options
def pilot(model: str, generations: int, repeats: int, **options: Any) -> int:
    """A short search on a single model, several times over: is it worth a full one?

    Escalate or stop: whether the median joint error of the repeats is below that of blackbox, the host's linear form
    fitted on the same runs, by more than the repeats differ (their interquartile range). A pilot has one population
    (search.islands: 1) and, unless --budget says otherwise, as many candidates as its generations propose: 800 a
    repeat, in all about a minute for the three runs of a bundled model on two cores.

    \b
    evolve pilot --model llama-2-7b
    evolve pilot --model mixtral-8x7b --generations 50 --repeats 5
    """
    from dataclasses import replace

    from evolve.repeats import start

    config = _config(options, model)
    search = replace(config.search, generations=generations, islands=1)
    budget = options["budget"] or generations * search.batch
    made = start(replace(config, search=search, budget=budget), repeats, options["out"], pilot=True)
    return _repeat(made, options["workers"], options["as_json"], options["quiet"])


def _config(options: dict[str, Any], models: str | None) -> Any:
    """The configuration with what the command line overrides."""
    from dataclasses import replace

    from evolve.choose import parse_list
    from evolve.config import load_config

    config = load_config(options["config_name"])
    data = config.data
    if options["experiments"]:
        from evaluator.experiments import BUNDLED

        files = tuple(f if f in BUNDLED else str(Path(f).resolve()) for f in options["experiments"])
        data = replace(data, files=files, predict_files=())
    for name, text in (("models", models), ("workloads", options["workloads"]), ("exclude", options["exclude"])):
        if text:
            changed: dict[str, Any] = {name: parse_list(text)}
            data = replace(data, **changed)
    search = replace(config.search, evolve=options["methods"]) if options["methods"] else config.search
    top = {name: options[name] for name in ("budget", "seed") if options[name] is not None}
    return replace(config, data=data, caps=replace(config.caps, **options["caps"]), search=search, **top)


def _search(config: Any, options: dict[str, Any]) -> int:
    from evolve.run import start

    return _work(start(config, options["out"]), options["workers"], options["as_json"], options["quiet"])


def _work(run: Any, workers: int | None, as_json: bool, quiet: bool) -> int:
    from evolve.report import print_run
    from evolve.run import work

    return _carry_out(work, run, workers, as_json, quiet, print_run, lambda report: bool(report["champion"]))


def _repeat(made: Any, workers: int | None, as_json: bool, quiet: bool) -> int:
    from evolve.repeats import work
    from evolve.repeats_report import print_repeats

    return _carry_out(work, made, workers, as_json, quiet, print_repeats, lambda report: bool(report["figures"]))


def _compare(made: Any, workers: int | None, as_json: bool, quiet: bool) -> int:
    from evolve.baseline.compare import compare
    from evolve.baseline.report import print_comparison

    def any_scored(report: dict[str, Any]) -> bool:
        return any(found["joint"]["100"]["median"] is not None for found in report["engines"].values())

    return _carry_out(compare, made, workers, as_json, quiet, print_comparison, any_scored)


def _carry_out(
    work: Callable[..., dict[str, Any]],
    made: Any,
    workers: int | None,
    as_json: bool,
    quiet: bool,
    show: Callable[[dict[str, Any]], None],
    good: Callable[[dict[str, Any]], bool],
) -> int:
    """Long work on a folder that exists: its report, and status 1 where nothing came of it."""
    from evolve.run import available_cores

    try:
        report = work(made, workers or available_cores(), quiet)
    except KeyboardInterrupt:
        return _fail(f"interrupted; nothing is lost: `evolve resume {made.path}` goes on", 130)
    if as_json:
        _print_json(report)
    else:
        show(report)
    return 0 if good(report) else 1


@cli.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--workers", type=click.IntRange(min=1), help="Processes [default: all cores].")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def resume(run_path: Path, workers: int | None, as_json: bool, quiet: bool) -> int:
    """Go on with a run, repeats or baselines that were interrupted or killed, exactly as if they had not been.

    \b
    evolve resume runs/0001
    """
    from evolve import repeats
    from evolve.baseline import compare
    from evolve.run_folder import open_run

    if compare.is_comparison(run_path):
        return _compare(compare.reopen(run_path), workers, as_json, quiet)
    if repeats.is_repeats(run_path):
        return _repeat(repeats.reopen(run_path), workers, as_json, quiet)
    return _work(open_run(run_path), workers, as_json, quiet)


@cli.command()
@click.option("--config", "config_name", default="default", show_default=True, metavar="NAME|FILE",
              help="What is fitted, its caps and gates, and our engine's settings.")  # fmt: skip
@click.option("--budget", type=click.IntRange(min=1), default=300, show_default=True, help="Candidates of a search.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Searches of each engine.")
@click.option("--only", metavar="A,B", help="Only these engines [default: all].")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder to create or add to [default: runs/baselines/NNNN]."
)
@click.option("--workers", type=click.IntRange(min=1), help="Searches at a time [default: all cores].")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def baselines(config_name: str, budget: int, seeds: int, only: str | None, out: Path | None, workers: int | None,
              as_json: bool, quiet: bool) -> int:  # fmt: skip
    """Compare our engine with other ways to search, under the same budget and the same evaluator.

    evolution (ours), random, climb (hill climbing), gp (plain genetic programming), openevolve (its database and
    islands); ours without a part: no-islands, no-grid, no-bandit. All start from the same programs, and all have the
    same fits, gates, data and caps. The defaults are 12,000 candidates: a quarter of an hour on two cores.

    \b
    evolve baselines --budget 100 --seeds 3 --only evolution,random,climb
    evolve baselines --config smoke --budget 300 --out runs/baselines/mine
    evolve resume runs/baselines/mine             go on after Ctrl-C
    """
    from dataclasses import replace

    from evolve.baseline.compare import create
    from evolve.baseline.engines import engine_names
    from evolve.config import load_config
    from evolve.run_folder import next_path

    engines, left_out = engine_names(only)
    for line in left_out:
        print(f"evolve: warning: {line}", file=sys.stderr)
    config = replace(load_config(config_name), budget=budget)
    made = create(out or next_path(Path("runs/baselines")), config, engines, seeds)
    return _compare(made, workers, as_json, quiet)


@cli.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--grid", is_flag=True, help="The MAP-Elites grid: best joint error by operations and features.")
@click.option("--pareto", is_flag=True, help="The Pareto front (the default).")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def archive(run_path: Path, grid: bool, pareto: bool, as_json: bool) -> int:
    """Show what a run kept, rebuilt from its journal.

    \b
    evolve archive runs/0001
    evolve archive runs/0001 --grid
    evolve archive runs/0001 --json > archive.json
    """
    from evolve.run_folder import open_run
    from evolve.views import archive_json, print_archive

    found = open_run(run_path)
    if as_json:
        _print_json(archive_json(found))
    else:
        print_archive(found, grid, pareto or not grid)
    return 0


@cli.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--folds",
    metavar="KIND,KIND",
    help="models, workloads, tp, files, stages [default: the configuration's, or all that apply].",
)
@click.option(
    "--budget", type=click.IntRange(min=1), help="Candidates of each fold's search [default: the configuration's, 500]."
)
@click.option(
    "--hindsight", is_flag=True, help="No search: the run's champion refitted in every fold; says so everywhere."
)
@click.option(
    "--against",
    metavar="PROGRAM",
    help="Compare with this form, refitted in every fold [default: the best known answer].",
)
@click.option("--again", is_flag=True, help="Although settings have changed since the first validate of this run.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes [default: all cores]; changes nothing but speed."
)
@click.option(
    "--csv", "table", metavar="FILE", type=click.Path(path_type=Path), help="Write a row per fold and experiment."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
@caps_options
def validate(run_path: Path, folds: str | None, budget: int | None, hindsight: bool, against: str | None, again: bool,
             workers: int | None, table: Path | None, as_json: bool, quiet: bool,
             caps: dict[str, int]) -> int:  # fmt: skip
    """Held-out errors of a run: the whole search repeated in every fold without what is held out.

    Kinds of folds: leave one model, one workload, one TP degree or one experiments file out (models, workloads, tp,
    files), and the last load stage (stages). Figures go to RUN/validate.json too, every call to RUN/validate.jsonl.

    \b
    evolve validate runs/0001
    evolve validate runs/0001 --folds models,workloads --budget 300 --csv held_out.csv
    evolve validate runs/0001 --against champion --json
    evolve validate runs/0001 --hindsight
    """
    from evolve.choose import parse_list
    from evolve.run import available_cores
    from evolve.run_folder import open_run
    from evolve.validate import Options
    from evolve.validate import validate as make
    from evolve.validate_csv import check_csv, write_csv
    from evolve.validate_report import print_validation

    run = open_run(run_path)
    if table is not None:
        check_csv(table)
    source = _load(against, caps) if against else None
    options = Options(parse_list(folds), budget, hindsight, source, again, workers or available_cores(), quiet)
    try:
        result = make(run, options)
    except KeyboardInterrupt:
        return _fail(f"interrupted; nothing is lost: the same `evolve validate {run_path} ...` goes on from there", 130)
    if table is not None:
        write_csv(result, table)
    if as_json:
        _print_json(result)
    else:
        print_validation(result)
    return 0


@cli.command()
@click.argument("program")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@caps_options
def show(program: str, as_json: bool, caps: dict[str, int]) -> int:
    """Show a program: text, counts, constants with units and bounds, its dot products, and what it reached.

    \b
    evolve show champion
    evolve show runs/0001:137
    evolve show my_model.py --json
    """
    from evolve.views import print_show, show_json

    source = _load(program, caps)
    if as_json:
        _print_json(show_json(source))
    else:
        print_show(source)
    return 0


@cli.command()
@click.argument("program", required=False)
@click.option("--fields", is_flag=True, help="List the fields that a program may read, with units and meanings.")
@click.option(
    "--physics", is_flag=True, help="Also: is it consistent with datasheets, parallelism, batch and model size?"
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@caps_options
def check(program: str | None, fields: bool, physics: bool, as_json: bool, caps: dict[str, int]) -> int:
    """Check a program as a search would: language, caps, units, then the gates on batches of many kinds.

    Exit status 2 where the text is not a program of sound units within the caps, 1 where a gate refuses it.

    \b
    evolve check my_model.py
    evolve check champion --physics
    evolve check --fields
    """
    from evolve.views import fields_json, print_fields
    from simulator.errors import InputError

    if fields == (program is not None):
        raise InputError("check needs a PROGRAM (a file, RUN:ID or a seed's name) or --fields: give one of the two")
    if fields:
        if as_json:
            _print_json(fields_json())
        else:
            print_fields()
        return 0
    from evolve.checking import check as judge
    from evolve.checking import print_check

    result = judge(_load(str(program), caps), physics)
    if as_json:
        _print_json(result)
    else:
        print_check(result)
    return 0 if result["ok"] else 1


@cli.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Experiments with observations [default: those the project ships].")
@click.option("--id", "ids", metavar="ID,ID", help="Only these experiments.")
@click.option("--only", metavar="NAME,NAME", help="Change only these: alpha, beta, a method, or names of constants.")
@click.option("--scope", type=click.Choice(["shared", "per-model"]), help="One value for all models, or one for each.")
@click.option("--per-model", metavar="NAME,NAME", help="Only these constants have a value for each model.")
@click.option("--method", "methods", type=click.Choice(FIT_METHODS), multiple=True, help="Route to the constants "
              "(repeatable: side by side) [default: auto].")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the fitted program here, its record beside it; "
              "per model: a file each, NAME-MODEL.py.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@caps_options
def fit(program: str, experiments: str | None, ids: str | None, only: str | None, scope: str | None,
        per_model: str | None, methods: tuple[str, ...], out: Path | None, as_json: bool,
        caps: dict[str, int]) -> int:  # fmt: skip
    """Calibrate a program's constants on experiments: the same form, your measurements.

    Says of each constant how far it may be off, how far it moved, and whether the measurements decide it at all.
    `alpha` is queueing_time and the overheads, `beta` step_time. Methods: linear (Gauss-Newton; CMA-ES over what stands
    in conditions), lbfgsb, neldermead, cma; auto takes linear, and CMA-ES after it with more than two conditionals.

    \b
    evolve fit champion --experiments mine.yaml --out mine.py
    evolve fit champion --experiments mine.yaml --only alpha
    evolve fit floor --scope per-model --out floors.py
    evolve fit floor --per-model weights,queueing_time.alpha0
    evolve fit my_model.py --method all
    """
    from evolve.calibrate import Settings, calibrate
    from evolve.choose import parse_list
    from evolve.fit_view import print_fit
    from simulator.errors import InputError

    if scope and per_model:
        raise InputError("--scope is for all constants, --per-model for some: give one of the two")
    own = None if scope == "per-model" else parse_list(per_model)
    routes = FIT_METHODS[:-1] if "all" in methods else tuple(dict.fromkeys(methods)) or FIT_METHODS[:1]
    source = _load(program, caps)
    result = calibrate(source, _experiments(experiments, ids), out, Settings(routes, own, parse_list(only)))
    if as_json:
        _print_json(result)
    else:
        print_fit(result)
    return 0


@cli.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="What to predict [default: the runs the project ships].")
@click.option("--id", "ids", metavar="ID,ID", help="Only these experiments.")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Arrival seeds to average over."
)
@click.option("--json", "as_json", is_flag=True, help="Every figure as JSON.")
@caps_options
def predict(
    program: str, experiments: str | None, ids: str | None, seeds: int, as_json: bool, caps: dict[str, int]
) -> int:
    """Predict TTFT, ITL and E2E of experiments, beside what was observed if anything was.

    \b
    evolve predict champion --experiments plan.yaml
    evolve predict runs/0001:137 --experiments plan.yaml --json
    """
    from evolve.predict import predict as make
    from evolve.views import print_prediction

    source = _load(program, caps)
    result = make(source, _experiments(experiments, ids), range(1, seeds + 1))
    if as_json:
        _print_json(result)
    else:
        print_prediction(result, program)
    return 0


def _experiments(file: str | None, ids: str | None) -> list[Any]:
    from evaluator.experiments import BUNDLED
    from evolve.choose import experiments_of, parse_list
    from simulator.errors import InputError

    found = experiments_of([file] if file else BUNDLED)
    wanted = parse_list(ids)
    for name in wanted:
        if name not in {e.id for e in found}:
            raise InputError(f"--id {name}: no such experiment: there are {', '.join(e.id for e in found)}")
    return [e for e in found if not wanted or e.id in wanted]


def _experiment(file: str | None, name: str) -> Any:
    from simulator.errors import InputError

    found = _experiments(file, name)
    if len(found) != 1:
        raise InputError(f"--id {name}: name one experiment")
    return found[0]


def _whole_names(model: str | None, hardware: str | None, tp: int | None, why: str = "") -> None:
    """A deployment is named by model and GPU; `why` --tp alone names none."""
    from simulator.errors import InputError

    if bool(model) != bool(hardware):
        raise InputError("--model and --hardware go together: give both")
    if tp is not None and not model:
        raise InputError(f"--tp needs --model and --hardware: {why}")


@cli.command()
@click.option("--case", "case", type=click.Path(path_type=Path), help="Engine limits and backend constants, JSON.")
@click.option("--trace", type=click.Path(path_type=Path), help="One request a row, CSV; with --case.")
@click.option("--experiments", metavar="FILE", help="Take the load of an experiment from here [default: shipped runs].")
@click.option("--id", "experiment", metavar="ID", help="The experiment to simulate instead of a trace.")
@click.option("--program", metavar="PROGRAM", help="Time it by this program [default: the case's backend, champion].")
@click.option("--model", help="The model whose fields a program reads; with --case, --hardware and --tp.")
@click.option("--hardware", help="GPU name, e.g. H100-SXM-80GB.")
@click.option("--tp", type=click.IntRange(min=1), help="Tensor parallelism [default: 1]; with --model.")
@click.option("--seed", type=click.IntRange(min=0), help="Arrival seed [default: 1]; with --id.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the completed requests here, CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print the aggregate figures as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
@caps_options
def simulate(case: Path | None, trace: Path | None, experiments: str | None, experiment: str | None,
             program: str | None, model: str | None, hardware: str | None, tp: int | None, seed: int | None,
             out: Path | None, as_json: bool, quiet: bool, caps: dict[str, int]) -> int:  # fmt: skip
    """Replay a trace, or an experiment's load, as the host simulator does, to the microsecond.

    A case holds `engine` (total_kv_blocks, block_size, max_num_seqs, max_num_batched_tokens,
    long_prefill_token_threshold, max_model_len), `alpha` and `step_linear_kv` in microseconds, and `horizon_us`.
    A trace has the columns arrival_s, input_len, output_len and, if wanted, row, prefix_group, prefix_len, timeout_s.

    \b
    evolve simulate --case case.json --trace trace.csv --out results.csv
    evolve simulate --case case.json --trace trace.csv --program my_model.py --json
    evolve simulate --case case.json --trace trace.csv --program champion --model llama-2-7b --hardware H100-SXM-80GB
    evolve simulate --id llama-2-7b-tp1-general --out requests.csv
    """
    from evolve.simulate import Names, of_case, of_experiment, print_aggregate, run
    from simulator.errors import InputError

    given = case is not None or trace is not None
    if given == (experiment is not None or experiments is not None):
        raise InputError("simulate needs --case and --trace, or --id: give one of the two")
    _whole_names(model, hardware, None)
    if given:
        if case is None or trace is None:
            raise InputError(f"--{'trace' if trace is None else 'case'} is missing: a trace needs a case's limits")
        if seed is not None:
            raise InputError("--seed goes with --id: a trace has its own arrivals")
        _whole_names(model, hardware, tp, "a case names no model")
        if model and not program:
            raise InputError("--model goes with --program: the case's own backend reads no model")
        names = Names(model, hardware, tp or 1) if model and hardware else None
        work = of_case(case, trace, _load(program, caps) if program else None, names)
    else:
        if model or tp is not None:
            raise InputError("--model, --hardware and --tp go with --case: an experiment has its own")
        if experiment is None:
            raise InputError("--experiments needs --id: name the experiment to simulate")
        work = of_experiment(
            _experiment(experiments, experiment), _load(program or "champion", caps), 1 if seed is None else seed
        )
    result = run(work, out, quiet)
    if as_json:
        _print_json(result)
    else:
        print_aggregate(result)
    return 0


@cli.command()
@click.argument("program", default="champion")
@click.option("--target", type=click.Choice(["blis-4", "blis-5"]), default="blis-4", show_default=True,
              help="blis-4: the host's main branch. blis-5: the frozen five-method interface.")  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder for the Go file and what goes with it."
)
@click.option(
    "--experiments", metavar="FILE", help="Take the deployment to bake in from here [default: the shipped runs]."
)
@click.option("--id", "experiment", metavar="ID", help="The experiment whose deployment is baked in.")
@click.option("--model", help="Bake in this model (with --hardware and --tp) instead of an experiment's deployment.")
@click.option("--hardware", help="GPU name, e.g. H100-SXM-80GB.")
@click.option("--tp", type=click.IntRange(min=1), help="Tensor parallelism [default: 1]; with --model.")
@click.option(
    "--check",
    "verify",
    is_flag=True,
    help="Build, vet, test and time it with the Go toolchain, and hold 10,000 random batches against Python; "
    "exit status 1 if anything fails.",
)
@caps_options
def emit(program: str, target: str, out: Path, experiments: str | None, experiment: str | None, model: str | None,
         hardware: str | None, tp: int | None, verify: bool, caps: dict[str, int]) -> int:  # fmt: skip
    """Write a program as Go that runs unchanged in the host simulator.

    \b
    evolve emit champion --target blis-4 --out go/ --id llama-2-7b-tp1-general
    evolve emit runs/0001:137 --target blis-5 --out go/ --check
    evolve emit champion --out go/ --model llama-3.1-70b --hardware H100-SXM-80GB --tp 4
    """
    from evolve.going import emit_to, of_experiment, of_names
    from simulator.errors import InputError

    source = _load(program, caps)
    if experiments and not experiment and not model:
        raise InputError("--experiments needs --id: name the experiment whose deployment is baked in")
    if (experiment or experiments) and model:
        raise InputError("--id or --experiments and --model exclude each other: name one deployment")
    _whole_names(model, hardware, tp, "an experiment has its own")
    deployment = None
    if experiment:
        deployment = of_experiment(_experiment(experiments, experiment))
    elif model and hardware:
        deployment = of_names(model, hardware, tp or 1)
    return emit_to(source, target, out, deployment, verify)


@cli.command()
@click.option("--most", type=click.IntRange(min=10_000), default=10_000_000, show_default=True,
              help="Requests in the longest trace.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--quiet", is_flag=True, help="No progress lines.")
def bench(most: int, as_json: bool, quiet: bool) -> int:
    """Measure how fast replays are on this machine, beside the same formula compiled into the clock.

    \b
    evolve bench
    evolve bench --most 1000000 --json
    """
    from evolve.bench import bench as measure
    from evolve.bench import print_bench

    result = measure(most, lambda text: None if quiet else print(f"{text} ...", file=sys.stderr, flush=True))
    if as_json:
        _print_json(result)
    else:
        print_bench(result)
    return 0


@cli.command("list")
@click.option(
    "--runs", "folder", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(folder: Path, as_json: bool) -> int:
    """List runs, shipped programs, configurations, models and GPUs.

    \b
    evolve list
    evolve list --runs elsewhere --json
    """
    from evolve.views import inventory, print_inventory

    if as_json:
        _print_json(inventory(folder))
    else:
        print_inventory(inventory(folder))
    return 0


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=1, allow_nan=False))
