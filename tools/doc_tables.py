"""Tables of the documentation, generated from the code. `make docs` writes them into the pages of docs/.

A page marks the place of a table with `<!-- table: NAME -->` and `<!-- end -->`, each on its own line. What the code
cannot say, such as the meaning of a setting, is written here. A key without a meaning, or a meaning without a key, is an
error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import completion_table
from paths import ROOT

from evaluator import known
from evaluator.fit import problem
from evaluator.fit.steps import step_positions
from evaluator.judge.gates import GATES
from evolve.api.frames import ablation as ablation_frames
from evolve.api.frames import constants as constant_frames
from evolve.api.frames import ledger as ledger_frames
from evolve.api.frames import predictions as prediction_frames
from evolve.api.frames import run as run_frames
from evolve.api.frames import sensitivity as sensitivity_frames
from evolve.api.frames import sweep as sweep_frames
from evolve.api.frames import validation as validation_frames
from evolve.cli import entry
from evolve.output.columns import Column
from evolve.output.terms import TERMS
from evolve.run import config as settings
from evolve.run.config import Config
from research.methods import frame as board_frames
from research.methods.catalog import METHODS
from research.methods.train import form_of
from simulator.common import documents
from simulator.model import architecture
from simulator.model.config_keys import JUDGED
from simulator.schema import READABLE
from simulator.serving import hardware, limits, observations
from simulator.serving import keys as file_keys
from simulator.serving.bundled import hardware_table, model_table
from simulator.serving.experiment import ARRIVALS, Engine, Experiment
from simulator.serving.file import experiment_from_mapping
from translate_go.fields import go_field

MARKED = re.compile(r"(?P<begin><!-- table: (?P<name>.+?) -->\n)(?P<table>.*?)(?P<end><!-- end -->)", re.DOTALL)
REQUIRED = "required"

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

CONFIGURATION = {
    "name": "label shown in reports",
    "budget": "distinct candidates that reach fitting, seed programs included",
    "seed": "seed of the search: the same seed gives the same archive",
    "data.files": "experiments files to fit: bundled names, or paths from the current folder",
    "data.predict_files": "experiments files that are only predicted",
    "data.models": "fit these models only; empty: all",
    "data.workloads": "fit these workloads only; empty: all",
    "data.exclude": "ids of experiments that are not fitted",
    "data.stages": "`but_last` leaves out the last load stage of every experiment that has several",
    "caps.operations": "most operations in a program",
    "caps.conditionals": "most conditionals in a program",
    "caps.constants": "most constants in a program",
    "search.batch": "proposals per island and generation",
    "search.tournament": "elites that compete to become a parent",
    "search.generations": "most generations",
    "search.patience": "generations over which the champion's merit must improve",
    "search.patience_gain": "relative improvement within `patience` generations below which the search stops",
    "search.proposer": "operators, language models, or both under one bandit",
    "search.selection": "`nsga2`: ranks on the four objectives; `lexicographic`: worst 3, then ITL error, then complexity",
    "search.islands": "populations that evolve separately",
    "search.migrate_every": "generations between migrations",
    "search.migrants": "fittest elites that each island copies to the next one",
    "search.fit": "the method that fits the constants of every candidate; a fold of the transfer error always uses Gauss-Newton",
    "search.hopeless": "times the joint error of the best in its cell: a candidate with more by the mean field is refused; 0: none",
    "search.limit_s": "seconds that a candidate's assessment may take; what takes longer is tried once more, then rejected; 0: no limit",
    "search.transfer_within": "times the lowest transfer error: one that exceeds this is not computed to the end; 0: all are",
    "search.finalists": "best programs whose constants CMA-ES polishes at the end; 0: none",
    "search.grid": "parents come from the MAP-Elites cells too, not only from the survivors of NSGA-II",
    "search.bandit": "chances of the operators follow what they improved",
    "search.evolve": "which methods may change",
    "search.fields": "which fields step_time may read",
    "search.operation_bins": "columns of the grid",
    "search.feature_bins": "rows of the grid",
    "search.start": "programs to start from besides the shipped ones: files, `RUN:ID`, shipped names or OpenEvolve checkpoints (`--start`)",
    "search.only_start": "start from these alone (`--only-start`)",
    "search.operators": "operator: weight; operators left out get 0; empty: the default weights",
    "score.seeds": "arrival seeds that a score is averaged over during a search; reports use 3",
    "score.moe_weight": "weight of mixture-of-experts runs in worst 3",
    "score.physics": "programs that contradict datasheets or measured kernels rank last",
    "score.champion": "merit of the champion's rule: the joint error, or its mean with the transfer error",
    "score.within": "relative distance from the lowest merit within which the simplest program wins",
    "score.nearer": "share of these that compete when the search is over: those nearest to the committee; 1: all",
    "score.left_out": "kinds of folds of the transfer error",
    "score.tail": "share of the runs that a kind of fold leaves out which counts: those with the largest errors; 1: all",
    "score.worst_pct": "largest E2E error, in percent, that a champion may have on any run",
    "validate.budget": "candidates of the search in every fold of `evolve validate`",
    "validate.folds": "kinds of folds; empty: all that apply",
    "llm.models": "models that propose, as `PROVIDER/MODEL` or `PROVIDER/MODEL=WEIGHT`",
    "llm.share": "share of the proposals that models start with in a mixed search",
    "llm.programs": "programs that a question asks for",
    "llm.parents": "programs that a question shows",
    "llm.patience": "generations in a row without a new candidate, after which a search that asks models ends",
    "llm.rounds": "rounds of a question: after each the model sees how its programs scored",
    "llm.api_base": "OpenAI-compatible server of models named `openai/NAME`",
    "llm.prices": "model: [input, output] in USD per million tokens",
    "llm.max_usd": "USD the run may spend",
    "llm.max_calls": "requests the run may send; 0: no limit",
    "llm.max_tokens": "tokens the run may use, in and out; 0: no limit",
    "llm.answer_tokens": "most tokens of an answer",
    "llm.timeout_s": "seconds to wait for an answer",
    "llm.attempts": "times a call is tried in all",
    "llm.backoff_s": "seconds before the second attempt; doubles each time",
    "llm.rpm": "requests per minute; 0: no limit",
    "llm.concurrency": "requests at a time",
    "llm.notes_every": "generations between notes; 0: none",
    "llm.summariser": "model that writes the notes; empty: the first proposing model",
    "llm.judges": "models that review proposals after their trial",
    "llm.judge_below": "average mark, of 10, below which a proposal is refused after its trial",
    "llm.prompts": "folder of templates that replace those of the project",
    "llm.cache": "folder that keeps answers across runs",
}

LENGTH = "whole number or distribution"

# key of an experiments file: (type, unit, meaning)
EXPERIMENTS = {
    "id": ("text", "", "unique name"),
    "model": ("text", "", "Hugging Face id or alias listed by `evolve list`; any name if `model_config` is given"),
    "model_config": ("mapping", "", "the model's `config.json`, or for a known model its `generation_config` alone; "
                     "default: looked up by `model`"),
    "hardware": ("text or mapping", "", "GPU listed by `evolve list`, or the GPU's figures"),
    "engine": ("mapping", "", "the serving engine's settings"),
    "workload": ("mapping", "", "the load"),
    "observed": ("mapping", "", "measurements; without them the experiment can only be predicted"),
    "quality": ("text", "", "only experiments of quality `clean` are fitted"),
    "engine.tensor_parallel": ("whole number", "GPU", "tensor parallelism"),
    "engine.max_num_seqs": ("whole number", "request", "most requests in a batch"),
    "engine.max_num_batched_tokens": ("whole number", "token", "most new tokens in a step; default without chunked prefill: "
                                      "`max_model_len` if that is more"),
    "engine.max_model_len": ("whole number", "token", "longest sequence; default: the model's own limit"),
    "engine.block_size": ("whole number", "token", "tokens in a KV block"),
    "engine.gpu_memory_utilization": ("number", "share", "share of the GPU's memory that the engine may use"),
    "engine.chunked_prefill": ("true or false", "", "`false`: see [whole prompts](#whole-prompts)"),
    "engine.prefix_caching": ("true or false", "", "reuse the KV blocks of shared prompts"),
    "engine.long_prefill_token_threshold": ("whole number", "token", "largest prompt chunk in a step; 0: no limit"),
    "engine.total_kv_blocks": ("whole number", "block", "KV capacity; default: computed from memory"),
    "engine.kv_cpu_offload": ("true or false", "", "KV offload to CPU memory; not replayed"),
    "engine.name": ("text", "", "for information"),
    "engine.version": ("text", "", "for information"),
    "workload.name": ("text", "", "a label, never a feature"),
    "workload.ignore_eos": ("true or false", "", "`false` is not replayed; a note says so"),
    "workload.timeout_s": ("number", "s", "when a client gives up; default: never, or as a trace says of each request"),
    "workload.stages": ("list of mappings", "", "load stages; each begins on schedule, even if requests of the previous one are still running"),
    "workload.stages[].rate": ("number", "request/s", "offered load"),
    "workload.stages[].duration_s": ("number", "s", "length of the stage"),
    "workload.stages[].arrival": ("text or mapping", "", "arrivals of this stage; default: those of the workload"),
    "workload.stages[].prompt_len": (LENGTH, "token", "`prompt_len` or `question_len` of this stage, not with `prompts_per_group`; default: that of the workload"),
    "workload.stages[].output_len": (LENGTH, "token", "the same of `output_len`"),
    "workload.arrival": ("text or mapping", "", f"{', '.join(f'`{name}`' for name in ARRIVALS[:3])}, `{{gamma: {{cv: 2}}}}` or `{{burst: {{size: 10}}}}`, see [arrivals](#arrivals-and-prompts)"),
    "workload.shared_prefix": ("mapping", "", "prompts that begin alike; exactly one of this and `prompt_len` is required"),
    "workload.shared_prefix.groups": ("whole number", "", "distinct shared prefixes"),
    "workload.shared_prefix.prompts_per_group": ("whole number", "", "distinct prompts per prefix, which are used in turn; default: no prompt repeats"),
    "workload.shared_prefix.system_prompt_len": ("whole number", "token", "tokens that a group shares"),
    "workload.shared_prefix.question_len": (LENGTH, "token", "tokens of each prompt after the shared ones"),
    "workload.prompt_len": (LENGTH, "token", "prompt length if no two prompts are alike"),
    "workload.prompt_len_mean": ("number", "token", "observed mean prompt length, where lengths are constant; default: the sum of the lengths given"),
    "workload.output_len": (LENGTH, "token", "tokens that a request generates"),
    "workload.session": ("mapping", "", "requests are the turns of [conversations](#conversations); default: they stand alone"),
    "workload.session.turns": ("whole number or distribution", "", "turns of a conversation"),
    "workload.session.think_time_s": ("number or distribution", "s", "time from one turn's arrival to that of the next"),
    "workload.trace": ("text", "", "file of recorded requests, relative to the experiments file; instead of `stages` and all that is drawn; see [traces](#traces)"),
    "workload.window_s": ("number", "s", "least length of a trace's time windows; default: 60"),
    "workload.window_requests": ("whole number", "request", "fewest requests of one; default: 200"),
    "observed.summary": ("mapping", "", "figures of the whole run; default: the weighted means of `stages`"),
    "observed.stages": ("list of mappings", "", "figures of each load stage, with the same keys as `summary`"),
    "observed.summary.e2e_ms": ("mapping", "ms", "`mean`, `p50`, `p90`, `p99` of the end-to-end latency"),
    "observed.summary.ttft_ms": ("mapping", "ms", "the same of the time to first token"),
    "observed.summary.itl_mean_ms": ("number", "ms", "mean over requests of (E2E - TTFT)/(output tokens - 1): of vLLM's benchmark mean_tpot_ms, not mean_itl_ms; default: from the means, if all answers are equally long"),
    "observed.summary.prompt_len_mean": ("number", "token", "for information"),
    "observed.summary.completed": ("whole number", "request", "requests that completed; for information"),
    "observed.summary.failed": ("whole number", "request", "requests that failed or were given up; for information"),
    "hardware.name": ("text", "", "the GPU's name in tables; default: inline"),
    "hardware.aliases": ("list", "", "ignored here"),
    "hardware.bf16_tflops": ("number", "TFLOP/s", "required in a mapping: dense bf16 peak of the tensor cores"),
    "hardware.fp8_tflops": ("number", "TFLOP/s", "the same for fp8; default: the bf16 peak"),
    "hardware.memory_tb_per_s": ("number", "TB/s", "required in a mapping: bandwidth of the memory"),
    "hardware.link_gb_per_s": ("number", "GB/s", "one direction of the interconnect; required for more than one GPU"),
    "hardware.memory_gb": ("number", "GB", "capacity in the product's name; required unless `usable_gib` or `engine.total_kv_blocks` is given"),
    "hardware.usable_gib": ("number", "GiB", "memory that CUDA reports; default: 0.989 GiB for each GB of `memory_gb`"),
    "hardware.kernels": ("text", "", "table of measured kernels, as configs/hardware.yaml names it; default: none"),
    "hardware.mfu_prefill": ("number", "share", "of the peak, for the known answer `host roofline`; default: 0.65"),
    "hardware.mfu_decode": ("number", "share", "the same for decode; default: 0.12"),
    "x_note": ("text or list of texts", "", "notes that are shown with results"),
    "x_components_ms": ("mapping", "ms", "observed parts of the mean E2E, see below"),
    "x_components_requests": ("whole number", "request", "requests that these parts rest on"),
}  # fmt: skip

# what is limited in an experiments file: (most, unit)
LIMITS = {
    "rate of a stage": (limits.MOST_RATE, "request/s"),
    "stages": (limits.MOST_STAGES, ""),
    "all stages together; `timeout_s`": (limits.MOST_SECONDS, "s"),
    "requests of an experiment": (limits.MOST_REQUESTS, "request"),
    "prompt, answer, `max_num_batched_tokens`, `long_prefill_token_threshold`": (limits.MOST_TOKENS, "token"),
    "`max_model_len`": (limits.ENGINE["max_model_len"], "token"),
    "all prompts and answers of an experiment": (limits.MOST_LOAD_TOKENS, "token"),
    "distinct prompts": (limits.MOST_PROMPTS, ""),
    "turns of a conversation": (limits.MOST_TURNS, ""),
    "pieces of all prompts of a trace": (limits.MOST_PIECES, ""),
    "`max_num_seqs`": (limits.MOST_SEQS, "request"),
    "requests in a batch, times prompt and answer": (limits.MOST_CONTEXT, "token"),
    "`block_size`": (limits.MOST_BLOCK, "token"),
    "`total_kv_blocks`": (limits.MOST_BLOCKS, "block"),
    "`tensor_parallel`": (limits.MOST_GPUS, "GPU"),
    "observed latency": (limits.MOST_MS, "ms"),
    "`bf16_tflops`, `fp8_tflops` of a GPU": (limits.GPU["bf16_tflops"][1], "TFLOP/s"),
    "`memory_tb_per_s` of a GPU": (limits.GPU["memory_tb_per_s"][1], "TB/s"),
    "`link_gb_per_s` of a GPU": (limits.GPU["link_gb_per_s"][1], "GB/s"),
    "`usable_gib` of a GPU": (limits.GPU["usable_gib"][1], "GiB"),
    "`num_hidden_layers`": (architecture.MOST_LAYERS, ""),
    "any other figure of a model": (architecture.MOST_SIZE, ""),
    "keys of a `model_config`": (architecture.MOST_KEYS, ""),
    "file": (documents.MOST_BYTES, "byte"),
    "values of a file, with YAML aliases expanded; 100 characters of text count as one": (documents.MOST_VALUES, ""),
    "levels of nesting": (documents.DEEPEST, ""),
    "characters of a number": (documents.LONGEST_NUMBER, ""),
}

# The least that an experiment must say; defaults are read from the experiment that it becomes.
LEAST: dict[str, Any] = {
    "id": "plan",
    "model": "llama-2-7b",
    "hardware": "H100-SXM-80GB",
    "workload": {"name": "chat", "stages": [{"rate": 1.0, "duration_s": 60.0}], "prompt_len": 500, "output_len": 100},
}

OPERATORS = {
    "add": "adds a term to a sum",
    "drop": "removes a term, or an argument of `max` or `min`",
    "swap": "replaces a field by another of the same unit",
    "wrap": "puts a floor under a sum, takes `max` or `min` of two parts, or wraps a factor in `sqrt` or `log1p`",
    "interact": "multiplies a term by another factor",
    "threshold": "gives a term a second coefficient above a threshold",
    "cross": "takes over a term of a second parent",
    "exchange": "joins the step time of one parent with the other methods of a second",
    "ground": "fixes a coefficient to 1, frees it, or ties a bare constant to a field of the deployment",
    "explain": "adds, of 32 candidate terms, the one that removes most of the parent's residuals",
    "prune": "removes the constant whose absence would cost least",
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, ending in a newline."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def prose(text: str) -> str:
    """Plain text as Markdown: characters that would be read as markup are escaped, except inside `code`."""
    parts = " ".join(text.split()).split("`")
    escaped = [
        re.sub(r"([*<|])", r"\\\1", part) if i % 2 == 0 else part.replace("|", r"\|") for i, part in enumerate(parts)
    ]
    return "`".join(escaped)


def code(text: object) -> str:
    """`text` as code, or nothing for nothing."""
    return f"`{text}`".replace("|", r"\|") if text != "" else ""


def fields_table() -> str:
    """Every field that a program may read."""
    rows = []
    for f in READABLE.values():
        formula = code(f.formula or "")
        if f.curve:
            formula = f"curve {code(f.curve)} at {code(f.at)}"
        rows.append((code(f"{f.scope}.{f.name}"), code(f.unit), prose(f.meaning), formula))
    return table(("field", "unit", "meaning", "formula"), rows)


def alignment_table() -> str:
    """Every field in the traces of a server and in Go."""
    rows = []
    for f in READABLE.values():
        go = go_field(f.scope, f.name)
        expression = "" if go.variable == go.expression else go.expression
        learned = ", ".join(map(code, f.learned_from.split(", "))) if f.learned_from else ""
        name = code(f"{f.scope}.{f.name}")
        rows.append((name, code(f.unit), prose(f.meaning), learned, code(go.variable), code(expression)))
    return table(("field", "unit", "meaning", "learned from", "Go", "expression"), rows)


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

    visit(Config(), "")
    return keys


def configuration_table() -> str:
    """The keys of a configuration."""
    keys = configuration()
    same("CONFIGURATION", CONFIGURATION, keys)
    return table(
        ("key", "type", "default", "meaning"),
        [(code(key), kind(key, keys[key]), shown(keys[key]), prose(CONFIGURATION[key])) for key in keys],
    )


def kind(key: str, default: object) -> str:
    """The type of a setting, or the values that it may have."""
    if key in CHOICES:
        several = "list of " if isinstance(default, tuple) else ""
        return several + ", ".join(map(code, CHOICES[key]))
    names: dict[type, str] = {
        tuple: "list of names",
        dict: "mapping",
        str: "text",
        bool: "true or false",
        int: "whole number",
        float: "number",
    }
    return names[type(default)]


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
        *(f"engine.{f.name}" for f in dataclasses.fields(Engine)),
        *(f"workload.{key}" for key in workload),
        *(f"observed.{key}" for key in ("summary", "stages", *figures)),
        *(f"hardware.{key}" for key in hardware.OWN),
        *("x_note", observations.COMPONENTS, "x_components_requests"),
    ]


def least_experiment(changed: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment that LEAST, or a changed version of it, describes."""
    return experiment_from_mapping(LEAST if changed is None else changed, "plan.yaml", model_table(), hardware_table())


def required_keys() -> list[str]:
    """The keys of LEAST that have no alternative."""
    workload = [f"workload.{key}" for key in LEAST["workload"] if key != "prompt_len"]
    stage = [f"workload.stages[].{key}" for key in LEAST["workload"]["stages"][0]]
    prefix = [f"workload.shared_prefix.{key}" for key in file_keys.SHARED_PREFIX if key != "prompts_per_group"]
    session = [f"workload.session.{key}" for key in file_keys.SESSION]
    return [*LEAST, *workload, *stage, *prefix, *session]


def gates_table() -> str:
    """The gates, and what each asks."""
    return table(("gate", "a program passes if"), [(code(name), prose(asked)) for name, asked in GATES.items()])


def experiments_table() -> str:
    """The keys of an experiments file."""
    keys, required, example = experiment_keys(), required_keys(), least_experiment()
    same("EXPERIMENTS", EXPERIMENTS, keys)
    rows = []
    drawn = {"workload.stages", "workload.output_len"}  # required unless there is a trace
    for key in keys:
        type_, unit, meaning = EXPERIMENTS[key]
        part, _, name = key.rpartition(".")
        default: object = ""
        if key in required:
            default = f"{REQUIRED}, or a trace" if key in drawn else REQUIRED
        elif key == "workload.arrival":
            default = code("poisson")
        elif part in ("engine", "workload"):
            default = shown(getattr(getattr(example, part), name, ""))
        elif key == "quality":
            default = shown(example.quality)
        rows.append((code(key), type_, unit, str(default) or "-", prose(meaning)))
    return table(("key", "type", "unit", "default", "meaning"), rows)


def limits_table() -> str:
    """The largest figures of an experiments file."""
    return table(
        ("what", "at most", "unit"), [(prose(what), f"{most:,.0f}", unit) for what, (most, unit) in LIMITS.items()]
    )


def operators_table() -> str:
    """The offline operators with their default weights."""
    same("OPERATORS", OPERATORS, settings.OPERATORS)
    return table(
        ("operator", "weight", "what it does"),
        [(code(name), f"{weight:g}", prose(OPERATORS[name])) for name, weight in settings.OPERATORS.items()],
    )


def commands() -> list[tuple[click.Context, click.Command]]:
    """Every command with a context to ask it for its help."""
    top = click.Context(entry.cli, info_name="evolve")
    named = [(name, entry.cli.get_command(top, name)) for name in entry.cli.list_commands(top)]
    flat: list[tuple[click.Context, click.Command]] = []
    for name, command in named:
        if isinstance(command, click.Group):  # `evolve model add` is a command named `model add`
            flat += [
                (click.Context(c, parent=top, info_name=f"{name} {sub}"), c) for sub, c in command.commands.items()
            ]
        elif command:
            flat.append((click.Context(command, parent=top, info_name=name), command))
    return flat


def commands_table() -> str:
    """Every command in a sentence."""
    rows = [
        (
            f"[`{ctx.info_name}`](#evolve-{str(ctx.info_name).replace(' ', '-')})",
            prose(command.get_short_help_str(1000)),
        )
        for ctx, command in commands()
    ]
    return table(("command", "what it does"), rows)


def options_tables() -> str:
    """A section for every command: how it is called, and its options."""
    sections = []
    for ctx, command in commands():
        usage = " ".join([str(ctx.command_path), *command.collect_usage_pieces(ctx)])
        records = [
            record for p in command.get_params(ctx) if (record := p.get_help_record(ctx)) and "--help" not in record[0]
        ]
        rows = [(code(option), prose(text)) for option, text in records]
        sections.append(f"### evolve {ctx.info_name}\n\n`{usage}`\n\n{table(('option', 'meaning'), rows)}")
    return "\n".join(sections)


def exit_statuses() -> dict[int, str]:
    """Exit status: meaning, as the command line's entry documents them."""
    line = re.search(r"Exit status: (.+)", " ".join((entry.__doc__ or "").split()))
    assert line, "evolve/cli/entry.py: no `Exit status: 0 ...; 1 ...` in the docstring: write it there"
    pieces = re.split(r"[;,.]\s+(?=\d+\s)", line[1].rstrip("."))
    return {int(number): meaning for number, _, meaning in (piece.partition(" ") for piece in pieces)}


def exit_table() -> str:
    """The exit statuses of every command."""
    return table(("status", "meaning"), [(str(number), prose(meaning)) for number, meaning in exit_statuses().items()])


def same(name: str, meanings: Iterable[str], keys: Iterable[str]) -> None:
    """Raises LookupError if the meanings of this module and the keys of the code differ."""
    missing, obsolete = set(keys) - set(meanings), set(meanings) - set(keys)
    if missing or obsolete:
        wrong = [
            *(f"{key} has no meaning" for key in sorted(missing)),
            *(f"{key} is no key" for key in sorted(obsolete)),
        ]
        raise LookupError(f"tools/doc_tables.py:{name}: {', '.join(wrong)}: correct the table there")


def config_keys_table() -> str:
    """What becomes of every key of a model's config.json."""
    rows = [(key.verdict.value, " ".join(map(code, key.names)), prose(key.follows)) for key in JUDGED]
    return table(("verdict", "keys", "what they are, and what follows"), rows)


def terms_table() -> str:
    """The words of tables and reports."""
    return table(("word", "meaning"), [(f"{word[0].upper()}{word[1:]}", prose(text)) for word, text in TERMS.items()])


def methods_table() -> str:
    """The methods of the original exercise, with their own training in words."""
    rows = []
    for method in METHODS:
        name, count = "-", "-"
        if method.program:
            program = form_of(method)
            low, high = problem.limits(program)
            count = str(sum(high[j] > low[j] for j in step_positions(program)))
            name = f"[`{method.program}`](../seeds/methods/{method.program}.py)"
        rows.append((code(method.name), prose(method.what), name, count, prose(method.training)))
    return table(("method", "what it is", "program", "constants of a step", "own training"), rows)


# What varies in the names of columns, and in their meanings -> what the documentation calls it.
Varying = tuple[tuple[re.Pattern[str], str], ...]
LATENCY: Varying = (
    (re.compile(r"(e2e|ttft|itl)_(mean|p50|p90|p99)(?=_(ms|error_pct|80|95))"), "LATENCY_QUANTITY"),
    (re.compile(r"(?<=QUANTITY_)(80|95)_(low|high)(?=_ms)"), "LEVEL_BOUND"),
    (re.compile(r"(mean|p50|p90|p99) (E2E|TTFT|ITL)"), "QUANTITY LATENCY"),
    (re.compile(r"(lower|upper) bound of the (80|95) % interval"), "BOUND of the interval of LEVEL %"),
)
ANSWERS = sorted(known.NAMES, key=len, reverse=True)  # the longer name where one begins with another
FIGURE: Varying = (
    (re.compile(rf"known_({'|'.join(name.replace(' ', '_') for name in ANSWERS)})_"), "known_ANSWER_"),
    (re.compile(rf"`({'|'.join(ANSWERS)})`"), "ANSWER"),
    (re.compile(r"(e2e|ttft|itl)(_p90|_p99)?(_later)?(?=_(error_pct|spread))"), "FIGURE"),
    (re.compile(r"(mean|p90|p99) (E2E|TTFT|ITL)(, over the load stages after the first)?"), "FIGURE"),
)

KIND: Varying = (
    (re.compile(rf"^({'|'.join(board_frames.KINDS.values())})_"), "KIND_"),
    (re.compile(rf"\(({'|'.join(board_frames.KINDS.values())})\)"), "(KIND)"),
)


def columns_table(columns: Iterable[Column], varying: Varying = ()) -> Callable[[], str]:
    """The columns of a frame. Those that only differ in what varies share a row."""

    def general(text: str) -> str:
        for pattern, name in varying:
            text = pattern.sub(name, text)
        return text

    def made() -> str:
        rows = dict.fromkeys(
            (code(name), c.kind, prose(c.meaning if name == c.name else general(c.meaning)))
            for c in columns
            for name in [general(c.name)]
        )
        return table(("column", "kind", "meaning"), rows)

    return made


TABLES = {
    "programs frame": columns_table(run_frames.PROGRAMS),
    "grid frame": columns_table(run_frames.GRID[:2]),
    "errors frame": columns_table(run_frames.ERRORS),
    "stages frame": columns_table(prediction_frames.STAGES, LATENCY),
    "predictions frame": columns_table(prediction_frames.PREDICTIONS, LATENCY),
    "sweep frame": columns_table(sweep_frames.SWEEP, LATENCY),
    "ablation frame": columns_table(ablation_frames.ABLATION),
    "sensitivity frame": columns_table(sensitivity_frames.SENSITIVITY),
    "validation frame": columns_table(validation_frames.VALIDATION, FIGURE),
    "constants frame": columns_table(constant_frames.CONSTANTS),
    "fitted frame": columns_table(constant_frames.FITTED),
    "fit errors frame": columns_table(constant_frames.ERRORS),
    "leaderboard frame": columns_table(board_frames.LEADERBOARD, KIND),
    "ledger frame": columns_table(ledger_frames.LEDGER),
    "terms": terms_table,
    "fields": fields_table,
    "alignment": alignment_table,
    "configuration": configuration_table,
    "experiments file": experiments_table,
    "config.json": config_keys_table,
    "limits": limits_table,
    "gates": gates_table,
    "methods": methods_table,
    "operators": operators_table,
    "commands": commands_table,
    "options": options_tables,
    "exit status": exit_table,
}


def refreshed(text: str) -> str:
    """A page with its tables as the code has them now."""
    return MARKED.sub(lambda m: f"{m['begin']}\n{TABLES[m['name']]()}\n{m['end']}", text)


def pages() -> list[Path]:
    """The pages of the documentation."""
    return sorted((ROOT / "docs").glob("*.md"))


if __name__ == "__main__":
    for page in pages():
        old = page.read_text("utf-8")
        new = refreshed(old)
        if new != old:
            page.write_text(new, "utf-8")
            print(f"{page.relative_to(ROOT)}: tables written")
    completion_table.write()
