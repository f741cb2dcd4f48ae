"""The templates of the texts that models are sent: the files in `prompts/`, or those of a user's folder."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from string import Template

from evolve.output.files import write_text
from simulator.common.errors import InputError

# The placeholders ($name) that each template may use.
NAMES = {
    "task": {"caps", "fields", "rounds"},
    "propose": {"program", "errors", "diagnosis", "others", "front", "aim", "tried", "meanwhile", "notes",
                "issues", "programs", "kinds"},
    "round": {"verdicts", "best", "rounds", "programs"},
    "notes": {"notes", "best", "proposers", "complaints", "latest"},
    "judge": {"fields", "document", "candidates"},
}  # fmt: skip
FOLDER = "prompts"

Templates = dict[str, str]


def bundled() -> Templates:
    """The project's templates, by name."""
    folder = resources.files("evolve.search.llm").joinpath(FOLDER)
    return {name: folder.joinpath(f"{name}.md").read_text("utf-8") for name in NAMES}


def load(folder: Path) -> Templates:
    """The project's templates, replaced by those in `folder`.

    Raises InputError if the folder has none, or one that is not UTF-8 text or uses an unknown placeholder.
    """
    paths = {name: folder / f"{name}.md" for name in NAMES if (folder / f"{name}.md").is_file()}
    if not paths:
        raise InputError(
            f"--prompts {folder}: holds no prompt: name a folder with {', '.join(f'{n}.md' for n in NAMES)}"
        )
    texts = {}
    for name, path in paths.items():
        try:
            texts[name] = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise InputError(f"{path}: cannot be read as UTF-8 text ({e}): fix or remove it") from None
        template = Template(texts[name])
        unknown = sorted(set(template.get_identifiers()) - NAMES[name])
        if unknown or not template.is_valid():
            what = f"${unknown[0]} is nothing that is filled in" if unknown else "a $ stands alone: write $$"
            raise InputError(f"{path}: {what}; there are {', '.join('$' + n for n in sorted(NAMES[name]))}")
    return bundled() | texts


def write(folder: Path, texts: Templates) -> None:
    """Write the templates to a run's folder, so that a resumed run uses the words it started with."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        write_text(folder / f"{name}.md", text)


def fill(text: str, **values: str) -> str:
    """The text with its placeholders replaced. A $ inside a value is not a placeholder."""
    return Template(text).substitute(values)
