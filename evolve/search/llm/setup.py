"""Language models in a run: what is checked before it, what is kept with it, and a new run from a recording."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from archive.journal import Journal
from archive.proposal import is_outcome
from evaluator.diagnose.describe import one_value
from evolve.run import folder as run_folder
from evolve.run.config import Config
from evolve.run.config_file import config_from, to_mapping
from evolve.run.folder import RunFolder
from evolve.run.llm_settings import weighted
from evolve.search.llm import client, servers, templates
from evolve.search.llm.call_log import call_log
from evolve.search.llm.conversation import TrialWorkers
from evolve.search.llm.dispatch import Dispatch
from evolve.search.llm.prices import Price, prices_of
from evolve.search.llm.proposer import LanguageModels
from evolve.search.proposer import Operators
from simulator.common.errors import InputError
from simulator.serving.experiment import Experiment


def names(config: Config) -> list[str]:
    """Every model that a configuration names, each once."""
    return list(dict.fromkeys(weighted(name, "llm.models")[0] for name in config.llm.named))


def check(config: Config, searches: int = 1) -> list[str]:
    """The lines that say what a run's models cost and how much they read (see servers.plan), before it is created.

    The limits are those of `searches` searches together. Raises InputError if no model is named, for bad prompts, for
    questions that are too long, if the share of a search allows none, and like `priced`.
    """
    if not config.llm.models:
        remedy = "give --llm provider/model, e.g. openai/gpt-5.4-mini, or llm.models in the configuration"
        raise InputError(f"--proposer {config.search.proposer} needs a model: {remedy}")
    texts, prices = _texts(config), priced(config)
    lines = servers.plan(config, prices, texts)
    if not config.llm.cache:  # whose answers are free
        servers.check_affordable(config, prices, texts, searches)
    return lines


def priced(config: Config) -> dict[str, Price]:
    """The prices of all models. Raises InputError for a missing library, key or price, or an unknown provider."""
    client.check_installed()
    client.check_keys(names(config), config.llm.api_base)
    own = client.own_models(names(config), config.llm.api_base)
    return prices_of(names(config), config.llm.prices, client.listed_price, own)


def keep_prompts(run: RunFolder) -> None:
    """Write the prompt templates of a run to its folder."""
    templates.write(run.path / templates.FOLDER, _texts(run.config))


def _texts(config: Config) -> templates.Templates:
    """The prompt templates that a configuration names; the project's if it names none."""
    return templates.load(Path(config.llm.prompts)) if config.llm.prompts else templates.bundled()


def prompts_of(run: RunFolder) -> templates.Templates:
    """The prompt templates in a run's folder; the project's if it has none."""
    folder = run.path / templates.FOLDER
    return templates.load(folder) if folder.is_dir() else templates.bundled()


def models_of(
    run: RunFolder,
    journal: Journal,
    operators: Operators,
    workers: TrialWorkers,
    fitted: Sequence[Experiment],
    remembered: Collection[int],
    show: Callable[[str], None],
) -> LanguageModels:
    """The language models of a run on these experiments, whether it is new, resumed or replayed."""
    config, recorded = run.config, bool(run.about.replayed)
    prices = {} if recorded else priced(config)
    dispatch = Dispatch(call_log(run.calls()), journal, config.llm, prices, recorded)
    texts = prompts_of(run)
    return LanguageModels(
        config, texts, dispatch, operators, workers, one_value(fitted), remembered, run.path, show
    )  # fmt: skip


def replay(recording: Path, out: Path | None) -> RunFolder:
    """A new run that starts with the calls of a recorded one and sends none itself.

    Raises InputError if the recording has no calls, or was made by another engine or on other data.
    """
    source = run_folder.open_run(recording)
    fitted, _ = source.experiments()
    run_folder.check_alike(source, fitted)
    calls = [line for line in source.each_line() if not is_outcome(line)]
    if not calls:
        raise InputError(
            f"--replay {recording}: has no calls to language models: name a run of --proposer llm or mixed"
        )
    about = replace(source.about, replayed=str(recording))
    run = run_folder.create(out or run_folder.next_path(), source.config, about)
    journal = Journal(run.journal)
    journal.append(calls)
    journal.close()
    shutil.copytree(recording / templates.FOLDER, run.path / templates.FOLDER)
    run_folder.write_start(run, run_folder.read_start(source))
    return run


def with_limits(run: RunFolder, limits: dict[str, float]) -> RunFolder:
    """The run with other limits, written to its config.yaml. Raises InputError if it calls no language models."""
    if run.config.search.proposer == "offline" or run.about.replayed or run.about.forms_of:
        raise InputError(f"{run.path}: calls no language model: leave out --{next(iter(limits)).replace('_', '-')}")
    changed = {name: type(getattr(run.config.llm, name))(limit) for name, limit in limits.items()}
    config = config_from(to_mapping(replace(run.config, llm=replace(run.config.llm, **changed))), "command line")
    return run_folder.rewrite(run, config)
