"""How language models enter a run: what must be there beforehand, what is kept with it, and a run from a recording."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from archive.journal import Journal
from archive.proposal import is_outcome
from evolve.propose.llm import client, templates
from evolve.propose.llm.calls import calls_of
from evolve.propose.llm.dispatch import Dispatch
from evolve.propose.llm.prices import Price, prices_of
from evolve.propose.llm.proposer import LanguageModels
from evolve.propose.proposer import Operators
from evolve.run import folder as run_folder
from evolve.run.config import Config, config_from, to_mapping
from evolve.run.data import chosen
from evolve.run.folder import Run
from evolve.run.llm_settings import weighted
from simulator.errors import InputError

REPLAYED = "replayed"  # the key of run.json that names the recording


def names(config: Config) -> list[str]:
    """Every model of a configuration, each once."""
    return list(dict.fromkeys(weighted(name, "llm.models")[0] for name in config.llm.named))


def check(config: Config) -> None:
    """Before there is a run. Raises InputError where no model is named, for bad prompts, and like `priced`."""
    if not config.llm.models:
        wanted = "give --llm provider/model, e.g. openai/gpt-5.4-mini, or llm.models in the configuration"
        raise InputError(f"--proposer {config.search.proposer} needs a model: {wanted}")
    if config.llm.prompts:
        templates.load(Path(config.llm.prompts))
    priced(config)


def priced(config: Config) -> dict[str, Price]:
    """Prices of all models. Raises InputError for a missing library, key or price, or an unknown provider."""
    client.check_installed()
    client.check_keys(names(config), config.llm.api_base)
    return prices_of(names(config), config.llm.prices, client.listed_price)


def keep_prompts(run: Run) -> None:
    """The prompts that a run goes by, in its folder."""
    folder = run.config.llm.prompts
    texts = templates.load(Path(folder)) if folder else templates.bundled()
    templates.write(run.path / templates.FOLDER, texts)


def prompts_of(run: Run) -> templates.Templates:
    """Those that a run keeps, the project's where it keeps none."""
    folder = run.path / templates.FOLDER
    return templates.load(folder) if folder.is_dir() else templates.bundled()


def models_of(
    run: Run,
    journal: Journal,
    operators: Operators,
    diagnose: Callable[[str], Future[str]],
    remembered: Collection[int],
    moe: frozenset[str],
    say: Callable[[str], None],
) -> LanguageModels:
    """The language models of a run that begins, goes on or is replayed."""
    config, recorded = run.config, REPLAYED in run.about
    prices = {} if recorded else priced(config)
    dispatch = Dispatch(calls_of(run.lines()), journal, config.llm, prices, recorded)
    texts = prompts_of(run)
    return LanguageModels(config, texts, dispatch, operators, diagnose, remembered, moe, run.path, say)


def replay(recording: Path, out: Path | None) -> Run:
    """A new run that begins with the calls of a recorded one and makes none itself.

    Raises InputError if the recording has no calls, or is of another engine or of other data.
    """
    source = run_folder.open_run(recording)
    fitted, _ = chosen(source.config.data)
    run_folder.check_same(source, fitted)
    calls = [line for line in source.lines() if not is_outcome(line)]
    if not calls:
        raise InputError(
            f"--replay {recording}: has no calls to language models: name a run of --proposer llm or mixed"
        )
    about = {**source.about, REPLAYED: str(recording)}
    run = run_folder.create(out or run_folder.next_path(), source.config, about)
    journal = Journal(run.journal)
    journal.append(calls)
    journal.close()
    shutil.copytree(recording / templates.FOLDER, run.path / templates.FOLDER)
    run_folder.write_start(run, run_folder.read_start(source))
    return run


def with_limits(run: Run, limits: dict[str, float]) -> Run:
    """The run with other limits, which its config.yaml then has. Raises InputError for one without language models."""
    if run.config.search.proposer == "offline" or REPLAYED in run.about:
        raise InputError(f"{run.path}: calls no language model: leave out --{next(iter(limits)).replace('_', '-')}")
    changed = {name: type(getattr(run.config.llm, name))(limit) for name, limit in limits.items()}
    config = config_from(to_mapping(replace(run.config, llm=replace(run.config.llm, **changed))), "command line")
    return run_folder.rewrite(run, config)
