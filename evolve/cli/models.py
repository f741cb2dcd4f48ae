"""The command `model`, for the user's own models: add, list, show, remove."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.cli.endings import finish, print_json
from evolve.cli.values import StrictGroup
from evolve.inspect import models
from evolve.output.terminal import say
from simulator.serving.model import file_of, own_models


@click.group(cls=StrictGroup)
def model() -> None:
    """Add your own models, so that every command knows them by name.

    They are files in ~/.config/evolve/models, or in the folder named by the environment variable EVOLVE_MODELS.

    \b
    evolve model add my-model/config.json
    evolve emit champion --out go/ --model my-model --hardware H100-SXM-80GB
    """


@model.command()
@click.argument("config", metavar="CONFIG")
@click.option(
    "--id", "ident", metavar="NAME", help="Its name [default: _name_or_path of the file, else its file or folder]."
)
@click.option(
    "--generation-config",
    "generation",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sampling defaults [default: generation_config.json next to CONFIG, if there is one].",
)
@click.option("--replace", is_flag=True, help="Replace your model of the same name.")
def add(config: str, ident: str | None, generation: Path | None, replace: bool) -> int:
    """Keep the model of a config.json under a name.

    CONFIG is an unchanged Hugging Face config.json, or the folder of a checkpoint. Experiments files may then say
    `model: NAME`, and --model and --deployment accept it. The Go of `evolve emit` also accepts the Hugging Face name in
    the config.json (`_name_or_path`). If the file has none, give it as --id.

    \b
    evolve model add my-model/
    evolve model add my-model/ --id my-org/my-model
    evolve model add config.json --id my-model --generation-config generation_config.json
    """
    models.print_model(models.add(config, ident, generation, replace))
    return 0


@model.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(as_json: bool) -> int:
    """List your own models.

    \b
    evolve model list
    """
    if as_json:
        print_json({"models": {ident: str(file_of(ident)) for ident in own_models()}})
    else:
        models.print_own()
    return 0


@model.command()
@click.argument("ident", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with its config.json and generation_config.")
def show(ident: str, as_json: bool) -> int:
    """Show the engine's view of a known model's config.json.

    \b
    evolve model show my-model
    evolve model show llama-3.1-8b
    """
    finish(models.show(ident), as_json, models.print_model)
    return 0


@model.command()
@click.argument("ident", metavar="NAME")
def remove(ident: str) -> int:
    """Remove one of your own models.

    \b
    evolve model remove my-model
    """
    say(f"removed {models.remove(ident)}")
    return 0
