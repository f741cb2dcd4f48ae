"""The reference pages of docs/reference/, which `make docs` writes from the commands and the declarations of the code.

tools/meanings.yaml has the meanings that no declaration has. A key without one, or one without a key, is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import completion_table
import yaml
from paths import ROOT

import evolve
from evaluator.fit import problem
from evaluator.fit.steps import step_positions
from evaluator.judge.gates import GATES
from evolve.calibrate.result import FIT_ERRORS, ConstantChange
from evolve.cli import entry
from evolve.inspect.ablation_view import AblationRow
from evolve.inspect.show import CONSTANTS
from evolve.output.columns import Columns, columns
from evolve.output.terms import TERMS
from evolve.plan.plan_result import ROWS
from evolve.plan.prediction_rows import PREDICTIONS, STAGES
from evolve.plan.sensitivity_result import SENSITIVITY
from evolve.plan.sweep_rows import SWEEP
from evolve.run import config as settings
from evolve.search.llm.ledger import LedgerRow
from evolve.summary.rows import ERRORS, GRID, PROGRAMS
from evolve.validate.rows import VALIDATION
from research.methods.catalog import METHODS
from research.methods.frame import LEADERBOARD
from research.methods.train import form_of
from simulator.common import documents
from simulator.model.config_keys import JUDGED
from simulator.model.terms import MOST_KEYS, MOST_LAYERS, MOST_SIZE
from simulator.schema import READABLE
from simulator.serving import gpu, limits, observations
from simulator.serving import keys as file_keys
from simulator.serving.engine import DECLARED, LARGEST, SETTINGS, TYPES
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.spec import read_spec
from translate_go.batch import go_field

FOLDER = ROOT / "docs" / "reference"
MEANINGS: dict[str, dict[str, str]] = yaml.safe_load((ROOT / "tools" / "meanings.yaml").read_text("utf-8"))
# Settings whose values come from a list.
CHOICES = {
    "data.stages": settings.STAGES,
    "search.proposer": settings.PROPOSERS,
    "search.selection": settings.SELECTIONS,
    "search.evolve": settings.METHODS,
    "search.fit": settings.FITS,
    "search.fields": settings.FIELD_SETS,
    "score.champion": settings.RULES,
    "validate.folds": settings.FOLDS,
}
KINDS: dict[type, str] = {
    tuple: "list of names",
    dict: "mapping",
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
}
# The least that an experiment must say; defaults are read from the experiment that it becomes.
LEAST: dict[str, Any] = {
    "id": "plan",
    "model": "llama-2-7b",
    "hardware": "H100-SXM-80GB",
    "workload": {"name": "chat", "stages": [{"rate": 1.0, "duration_s": 60.0}], "prompt_len": 500, "output_len": 100},
}
# What is limited in an experiments file: the most, and its unit.
LIMITS = {
    "rate of a stage": (limits.MOST_RATE, "request/s"),
    "stages": (limits.MOST_STAGES, ""),
    "all stages together; `timeout_s`": (limits.MOST_SECONDS, "s"),
    "requests of an experiment": (limits.MOST_REQUESTS, "request"),
    "prompt, answer": (limits.MOST_TOKENS, "token"),
    "all prompts and answers of an experiment": (limits.MOST_LOAD_TOKENS, "token"),
    "distinct prompts": (limits.MOST_PROMPTS, ""),
    "turns of a conversation": (limits.MOST_TURNS, ""),
    "pieces of all prompts of a trace": (limits.MOST_PIECES, ""),
    "requests in a batch, times prompt and answer": (limits.MOST_CONTEXT, "token"),
    "observed latency": (limits.MOST_MS, "ms"),
    **{f"`engine.{name}`": (most, "") for name, most in LARGEST.items()},
    **{f"`hardware.{name}`": (most, "") for name, (_, most) in limits.GPU.items()},
    "`num_hidden_layers`": (MOST_LAYERS, ""),
    "any other figure of a model": (MOST_SIZE, ""),
    "keys of a `model_config`": (MOST_KEYS, ""),
    "file": (documents.MOST_BYTES, "byte"),
    "values of a file, with YAML aliases expanded": (documents.MOST_VALUES, ""),
    "levels of nesting": (documents.DEEPEST, ""),
    "characters of a number": (documents.LONGEST_NUMBER, ""),
}
# The tables that commands write with --csv and --parquet, and that `import evolve` gives as data frames.
FRAMES: dict[str, Columns] = {
    "Run.programs, Run.front: `evolve archive --csv`": PROGRAMS,
    "Run.grid, in addition": GRID[:2],
    "Run.errors": ERRORS,
    "Run.validation: `evolve validate --csv`": VALIDATION,
    "Run.ledger": LedgerRow,
    "predict: `evolve predict --csv`": PREDICTIONS,
    "stages of a prediction": STAGES,
    "sweep: `evolve predict --sweep --csv`": SWEEP,
    "deployments: `evolve plan --csv`": ROWS,
    "`evolve sensitivity --csv`": SENSITIVITY,
    "`evolve show --ablate --csv`": AblationRow,
    "Program.constants: `evolve show --csv`": CONSTANTS,
    "Fit.constants": ConstantChange,
    "Fit.errors": FIT_ERRORS,
    "`python -m research leaderboard --csv`": LEADERBOARD,
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def prose(text: str) -> str:
    """Plain text as Markdown: characters that would be read as markup are escaped, except inside `code`."""
    parts = " ".join(text.split()).split("`")
    return "`".join(
        part.replace("|", r"\|") if i % 2 else re.sub(r"([*<|])", r"\\\1", part) for i, part in enumerate(parts)
    )


def code(text: object) -> str:
    """`text` as code, or nothing for nothing."""
    return f"`{text}`".replace("|", r"\|") if text != "" else ""


def shown(default: object) -> str:
    """A default as YAML writes it."""
    match default:
        case tuple():
            return code(f"[{', '.join(map(str, default))}]")
        case dict():
            return code("{}")
        case bool():
            return code(str(default).lower())
        case None | "":
            return "-"
        case float():
            return code(f"{default:g}")
    return code(default)


def same(part: str, keys: Iterable[str]) -> Mapping[str, str]:
    """The meanings of these keys. Raise LookupError if one is missing or obsolete."""
    meanings, keys = MEANINGS[part], set(keys)
    missing, obsolete = sorted(keys - set(meanings)), sorted(set(meanings) - keys)
    if missing or obsolete:
        raise LookupError(f"tools/meanings.yaml, {part}: no meaning of {missing}, no such key {obsolete}")
    return meanings


def commands(
    group: click.Group = entry.cli, above: click.Context | None = None
) -> Iterable[tuple[click.Context, click.Command]]:
    """Every command with a context to ask it for its help."""
    above = above or click.Context(group, info_name="evolve", terminal_width=100)
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        assert command
        context = click.Context(command, above, name)
        if isinstance(command, click.Group):
            yield from commands(command, context)
        else:
            yield context, command


def exit_statuses() -> dict[int, str]:
    """Exit status: meaning, as the docstring of evolve.cli.entry has them."""
    text = " ".join((entry.__doc__ or "").split()).partition("Exit status: ")[2]
    pieces = re.split(r"[;,.]\s+(?=\d+\s)", text.rstrip("."))
    return {int(number): meaning for number, _, meaning in (piece.partition(" ") for piece in pieces)}


def commands_page() -> str:
    """Every command with its help."""
    statuses = table(("status", "meaning"), [(str(number), prose(text)) for number, text in exit_statuses().items()])
    parts = [f"## {ctx.command_path}\n\n```text\n{command.get_help(ctx)}\n```\n" for ctx, command in commands()]
    return "\n".join(["# Commands\n\n## Exit statuses\n", statuses, *parts])


def configuration() -> dict[str, object]:
    """Every key of a configuration, dotted, with its default."""
    keys: dict[str, object] = {}

    def visit(value: Any, prefix: str) -> None:
        for f in dataclasses.fields(value):
            default = getattr(value, f.name)
            if dataclasses.is_dataclass(default):
                visit(default, f"{prefix}{f.name}.")
            else:
                keys[prefix + f.name] = default

    visit(settings.Config(), "")
    return keys


def configuration_page() -> str:
    """The keys of a configuration, and the operators of a search."""
    keys, rows = configuration(), []
    meanings = same("configuration", keys)
    for key, default in keys.items():
        kind = KINDS[type(default)]
        if key in CHOICES:
            several = "list of " if isinstance(default, tuple) else ""
            kind = several + ", ".join(map(code, CHOICES[key]))
        rows.append((code(key), kind, shown(default), prose(meanings[key])))
    about = same("operators", settings.OPERATORS)
    operators = [(code(name), f"{weight:g}", prose(about[name])) for name, weight in settings.OPERATORS.items()]
    head = (
        "# Keys of a configuration\n\nA dot separates levels: `search.islands` is `islands` in the mapping `search`.\n"
    )
    return "\n".join(
        [
            head,
            table(("key", "type", "default", "meaning"), rows),
            "## Offline operators\n",
            table(("operator", "weight", "what it does"), operators),
        ]
    )


def experiment_keys() -> list[str]:
    """Every key of an experiment, dotted, that the reader of experiments files knows."""
    below = {
        "stages": [f"stages[].{key}" for key in file_keys.STAGE],
        "shared_prefix": [f"shared_prefix.{key}" for key in file_keys.SHARED_PREFIX],
        "session": [f"session.{key}" for key in file_keys.SESSION],
    }
    workload = [k for key in file_keys.WORKLOAD for k in (key, *below.get(key, ()))]
    figures = [f"summary.{key}" for key in file_keys.OBSERVATION]
    return [
        *file_keys.EXPERIMENT,
        *(f"engine.{name}" for name in SETTINGS),
        *(f"{pool}.{key}" for pool in file_keys.POOLS[:2] for key in file_keys.POOL),
        *(f"transfer.{key}" for key in file_keys.TRANSFER),
        *(f"workload.{key}" for key in workload),
        *(f"observed.{key}" for key in ("summary", "stages", *figures)),
        *(f"hardware.{key}" for key in gpu.GPU_KEYS),
        *("x_note", observations.COMPONENTS, observations.COMPONENT_REQUESTS),
    ]


def least_experiment(changed: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment that LEAST, or a changed version of it, describes."""
    return deploy(read_spec(LEAST if changed is None else changed, "plan.yaml"))


def required_keys() -> list[str]:
    """The keys of LEAST that have no alternative, and those that a prefix or a session needs."""
    workload = [f"workload.{key}" for key in LEAST["workload"] if key != "prompt_len"]
    stage = [f"workload.stages[].{key}" for key in LEAST["workload"]["stages"][0]]
    prefix = [f"workload.shared_prefix.{key}" for key in file_keys.SHARED_PREFIX if key != "prompts_per_group"]
    session = [f"workload.session.{key}" for key in file_keys.SESSION]
    return [*LEAST, *workload, *stage, *prefix, *session]


def experiments_page() -> str:
    """The keys of an experiments file, its limits, and the keys of a model's config.json."""
    keys, required, example, rows = experiment_keys(), required_keys(), least_experiment(), []
    settings = {f"engine.{name}": f"{KINDS[TYPES[name]]} | {d.unit} | {d.meaning}" for name, d in DECLARED.items()}
    meanings = same("experiments", set(keys) - settings.keys()) | settings
    drawn = {"workload.stages", "workload.output_len"}  # required unless there is a trace
    for key in keys:
        kind, unit, meaning = meanings[key].split(" | ")
        part, _, name = key.rpartition(".")
        default = "-"
        if key in required:
            default = "required, or a trace" if key in drawn else "required"
        elif key == "workload.arrival":
            default = code("poisson")
        elif part in ("engine", "workload"):
            default = shown(getattr(getattr(example, part), name, ""))
        elif key == "quality":
            default = shown(example.quality)
        rows.append((code(key), kind, unit, default, prose(meaning)))
    largest = [(prose(what), f"{most:,.0f}", unit) for what, (most, unit) in LIMITS.items()]
    judged = [(key.verdict.value, " ".join(map(code, key.names)), prose(key.follows)) for key in JUDGED]
    return "\n".join(
        [
            "# Keys of an experiments file\n\ndocs/ingest.md explains them with examples.\n",
            table(("key", "type", "unit", "default", "meaning"), rows),
            "## Limits\n",
            table(("what", "at most", "unit"), largest),
            "## Keys of a model's config.json\n",
            table(("verdict", "keys", "what they are, and what follows"), judged),
        ]
    )


def fields_page() -> str:
    """Every field that a program may read: its formula, its source in the traces of a server, and its Go."""
    rows = []
    for f in READABLE.values():
        go = go_field(f.scope, f.name)
        formula = f"curve {code(f.curve)} at {code(f.at)}" if f.curve else code(f.formula)
        learned = ", ".join(map(code, f.learned_from.split(", "))) if f.learned_from else ""
        cells = (code(f"{f.scope}.{f.name}"), code(f.unit), prose(f.meaning), formula, learned)
        rows.append((*cells, code(go.variable), code("" if go.variable == go.expression else go.expression)))
    heads = ("field", "unit", "meaning", "formula", "learned from", "Go", "Go expression")
    return f"# Fields\n\nThe same as `evolve show --fields`.\n\n{table(heads, rows)}"


def python_page() -> str:
    """The Python interface: signatures and docstrings."""
    parts = ["# Python: `import evolve`\n"]
    for name in sorted(evolve.__all__):
        value = getattr(evolve, name)
        parts.append(_documented(f"evolve.{name}", value))
        if isinstance(value, type):
            members = [(n, v) for n, v in vars(value).items() if not n.startswith("_") and getattr(v, "__doc__", None)]
            parts += [
                _documented(f"{name}.{n}", getattr(v, "__func__", v))
                for n, v in members
                if type(v).__name__ != "member_descriptor"
            ]
    return "\n".join(parts)


def _documented(name: str, value: Any) -> str:
    called = value.__call__ if inspect.ismodule(value) else value
    signature = str(inspect.signature(called)) if callable(called) else ""
    return f"## {name}\n\n```python\n{name}{signature}\n```\n\n```text\n{inspect.getdoc(called) or inspect.getdoc(value)}\n```\n"


def tables_page() -> str:
    """The columns of every table, the words of reports, the gates, and the methods of the original exercise."""
    parts = ["# Tables\n"]
    for name, declared in FRAMES.items():
        rows = dict.fromkeys((code(c.name), c.kind, prose(c.meaning)) for c in columns(declared))
        parts += [f"## {name}\n", table(("column", "kind", "meaning"), rows)]
    parts += [
        "## Words of tables and reports\n",
        table(("word", "meaning"), [(w, prose(text)) for w, text in TERMS.items()]),
    ]
    parts += [
        "## Gates\n",
        table(("gate", "a program passes if"), [(code(n), prose(asked)) for n, asked in GATES.items()]),
    ]
    methods = []
    for method in METHODS:
        name, count = "-", "-"
        if method.program:
            program = form_of(method)
            low, high = problem.limits(program)
            count = str(sum(high[j] > low[j] for j in step_positions(program)))
            name = code(method.program)
        methods.append((code(method.name), prose(method.what), name, count, prose(method.training)))
    heads = ("method", "what it is", "program", "constants of a step", "own training")
    return "\n".join([*parts, "## Methods of the original exercise\n", table(heads, methods)])


PAGES = {
    "commands": commands_page,
    "experiments": experiments_page,
    "configuration": configuration_page,
    "fields": fields_page,
    "python": python_page,
    "tables": tables_page,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, made in PAGES.items():
        (FOLDER / f"{page}.md").write_text(made(), "utf-8")
    completion_table.write()
