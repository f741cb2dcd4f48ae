"""The texts that models are sent, as files: those of evolve/llm/prompts, or a folder's in their place."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from string import Template

from simulator.errors import InputError

# what each may ask for with $name
NAMES = {
    "task": {"caps", "fields", "programs"},
    "propose": {"program", "errors", "diagnosis", "emphasis", "others", "front", "rule", "complaints", "notes",
                "programs", "kinds"},
    "repair": {"complaints", "programs"},
    "notes": {"notes", "best", "proposers", "complaints", "latest"},
    "judge": {"fields", "candidates"},
}  # fmt: skip
FOLDER = "prompts"

Templates = dict[str, str]


def bundled() -> Templates:
    """The project's own."""
    folder = resources.files("evolve.propose.llm").joinpath(FOLDER)
    return {name: folder.joinpath(f"{name}.md").read_text("utf-8") for name in NAMES}


def load(folder: Path) -> Templates:
    """The project's own, and in their place those that `folder` has. Raises InputError for a folder without any, or one
    with a placeholder that nothing fills."""
    found = {name: folder / f"{name}.md" for name in NAMES if (folder / f"{name}.md").is_file()}
    if not found:
        raise InputError(
            f"--prompts {folder}: holds no prompt: name a folder with {', '.join(f'{n}.md' for n in NAMES)}"
        )
    texts = {}
    for name, path in found.items():
        try:
            texts[name] = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise InputError(f"{path}: cannot be read as UTF-8 text ({e}): mend or remove it") from None
        template = Template(texts[name])
        unknown = sorted(set(template.get_identifiers()) - NAMES[name])
        if unknown or not template.is_valid():
            what = f"${unknown[0]} is nothing that is filled in" if unknown else "a $ stands alone: write $$"
            raise InputError(f"{path}: {what}; there are {', '.join('$' + n for n in sorted(NAMES[name]))}")
    return bundled() | texts


def write(folder: Path, texts: Templates) -> None:
    """Keep them with a run, so that it goes on with the words it began with."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text, "utf-8")


def fill(text: str, **values: str) -> str:
    """The text with its placeholders replaced, once: a $ in a value stays what it is."""
    return Template(text).substitute(values)
