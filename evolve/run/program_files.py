"""The files of programs that commands write, each with its record, trust and trees next to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from evolve.output.files import check_writable, keep, write_json
from evolve.run.folder import is_run
from evolve.run.program import has_record, load, write_program
from evolve.run.records import Record
from evolve.run.trust import Trust, trust_file
from simulator.common.errors import InputError
from simulator.language.forest import Forest
from simulator.language.forest_file import forest_file
from simulator.serving.model import model_table


def files_for(out: Path | None, name: str, models: Sequence[str] | None, option: str = "--out") -> list[Path | None]:
    """The program's file, or one for each of `models`; in a folder, named after the program. None without `out`.

    Raises InputError, before any work, for a file that does not end in .py, cannot be written, or holds a program that
    no fit wrote or that was changed since, and for the folder of a run. `option`: the option that names it.
    """
    if out is None:
        return [None] if models is None else [None for _ in models]
    if is_run(out):
        raise InputError(f"{out}: is the folder of a run: give a file to write, such as {option} {out.name}.py")
    if out.is_dir():
        out = out / f"{_plain(Path(name).name.removesuffix('.py'))}.py"
    if out.suffix != ".py":
        raise InputError(f"{out}: a program's file ends in .py, its record is next to it: write {option} {out.stem}.py")
    files = [out] if models is None else [out.with_stem(f"{out.stem}-{alias(m)}") for m in models]
    for file in files:
        in_place = file.resolve() == Path(name).resolve()
        if file.exists() and not in_place and (why := not_ours(file)):
            raise InputError(f"{file}: {why}: give another {option}, or remove it")
        for each in (file, file.with_suffix(".json"), trust_file(file), forest_file(file)):
            check_writable(each, option)
    return list(files)


def save_program(path: Path, text: str, forest: Forest | None, kept: Record, trust: Trust | None = None) -> None:
    """Write a program with its ensemble, record and trust to its file and those beside it. Raises InputError like
    `keep`.

    A trust in the file's place, which is of another program, is removed if there is none to replace it.
    """

    def write(file: Path) -> None:
        trust_file(file).unlink(missing_ok=True)
        write_program(file, text, forest, kept)
        if trust:
            write_json(trust_file(file), trust.to_json())

    keep(path, "--out", write, text)


def not_ours(file: Path) -> str:
    """The reason why a program must not be replaced by another one; "" if a fit, or a blend, wrote it as it is."""
    if not has_record(file):
        return "exists, and was not written by a fit"
    try:
        changed = bool(load(str(file)).foreign)
    except InputError:  # a fit writes programs that can be read, so this text is another one
        changed = True
    return "was changed since a fit, or a blend, wrote it" if changed else ""


def alias(model: str) -> str:
    """The model's short name, as part of a file's name."""
    entry = model_table().get(model)
    return _plain(entry["aliases"][0] if entry and entry["aliases"] else model.rsplit("/", 1)[-1])


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
