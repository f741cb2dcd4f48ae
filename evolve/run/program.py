"""PROGRAM arguments: a file of program text, `RUN:ID`, or the name of a seed; `champion` is the shipped one.

A file MY.py that reads `b.trees` has its ensemble in MY.trees.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from archive.elite import SEED, Elite
from archive.proposal import MODEL, Outcome
from evolve.output.files import write_json
from evolve.output.terminal import command
from evolve.run.beyond import kinds_beyond
from evolve.run.folder import RunFolder, is_run, open_run
from evolve.run.records import Record, read_record, record_of
from simulator.common.documents import parse_json, read_bytes
from simulator.common.errors import InputError, nearest, unreadable
from simulator.common.files import write_text
from simulator.language.bounds import outside_bounds
from simulator.language.complete import DEFAULTS, complete
from simulator.language.forest import Forest
from simulator.language.forest_file import forest_file, with_forest
from simulator.language.infer import check_units
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.measure import Caps, constants, enforce, features, operations
from simulator.language.parse import parse
from simulator.language.simplify import without_dominated
from simulator.language.source import MAX_BYTES
from simulator.language.terms import truthful
from simulator.language.unparse import unparse

CHAMPION = "champion"
TRAINED_PHYSICS = "trained_physics"


@dataclass(frozen=True)
class Source:
    """A program with its name and text.

    record: the record of its fit, None if unknown. foreign: the reason why the record in the file beside it is not its
    own; "" if it is, or without such a file.
    """

    name: str
    text: str
    program: Program
    record: Record | None = None
    foreign: str = ""

    @property
    def complete(self) -> Program:
        """The program with every timed method written out."""
        return complete(self.program)

    @property
    def fitted_before(self) -> bool:
        """True if its constants come from a fit to our runs, or for the host's own form to others."""
        return self.record is not None or self.name == TRAINED_PHYSICS

    def kinds_beyond(self, facts: Mapping[str, float], hardware: str) -> tuple[str, ...]:
        """The respects in which a deployment is beyond the runs of the program's fits; none if these are unknown."""
        return kinds_beyond(self.record.all_ranges, facts, hardware) if self.record else ()

    @property
    def cautions(self) -> tuple[str, ...]:
        """Reasons not to rely on the program, a line each: constants outside their bounds, methods without effect, and
        those of its record.

        A program without a record has a line for a missing queueing_time.
        """
        lines = [*outside_bounds(self.program), *_idle(self.program)]
        if self.record is not None:
            return (*lines, *self.record.cautions)
        if self.foreign:
            lines.append(self.foreign)
        if not self.program.function("queueing_time"):
            start = DEFAULTS[0].constants[0].value
            lines.append(
                f"no queueing_time: {start:g} us from arrival to queue are assumed until `evolve fit` finds them"
            )
        return tuple(lines)


def _idle(program: Program) -> list[str]:
    """A line for methods that no replay shows. blis-5 has them: the events that they move do nothing, and the first is
    added to its reported scheduling delay (blis-des-semantics 6). blis-4 has neither."""
    given = [name for name in ("scheduling_time", "preemption_time") if program.function(name)]
    if not given:
        return []
    change = f"{' and '.join(given)} {'change' if len(given) > 1 else 'changes'} no latency, here or in the host"
    return [f"{change}: give what an admission or a preemption costs to step_time"]


def seed_names() -> list[str]:
    """Names of the shipped programs, including the champion."""
    files = resources.files("seeds").iterdir()
    return sorted(f.name.removesuffix(".py") for f in files if f.name.endswith(".py") and f.name != "__init__.py")


def seed_texts() -> list[tuple[str, str]]:
    """(name, text) of the programs that a search starts from: all shipped ones except the champion and the host's own
    form, whose published coefficients may come from the runs at hand."""
    return [(name, _shipped(f"{name}.py") or "") for name in seed_names() if name not in (CHAMPION, TRAINED_PHYSICS)]


def method_names() -> list[str]:
    """Names of the shipped methods of the original exercise (docs/concepts.md), which no search starts from."""
    files = resources.files("seeds").joinpath("methods").iterdir()
    return sorted(f.name.removesuffix(".py") for f in files if f.name.endswith(".py"))


def method_text(name: str) -> str:
    text = _shipped(f"methods/{name}.py")
    assert text is not None, name
    return text


def _shipped(name: str) -> str | None:
    file = resources.files("seeds").joinpath(name)
    return file.read_text("utf-8") if file.is_file() else None


def load(spec: str, caps: Caps | None = None) -> Source:
    """The program that `spec` names; a user's file must keep to `caps`.

    Raises InputError, one line, for anything that is not a program.
    """
    if named := proposal_of(spec):
        return source_of(*named)
    if re.fullmatch(r"[\w-]+", spec) and spec != "__init__":
        text = _shipped(f"{spec}.py") or _shipped(f"methods/{spec.replace('-', '_')}.py")
        if text is not None:
            return Source(spec, text, parse(text, f"{spec}.py"), _record(_shipped(f"{spec}.json"), f"{spec}.json"))
    return _from_file(spec, caps)


def _from_file(spec: str, caps: Caps | None) -> Source:
    path, (run, colon, number) = Path(spec), spec.rpartition(":")
    if is_run(path):
        raise InputError(
            f"{spec}: is a run: name one of its programs, {spec}:ID, as `{command('archive', spec)}` lists them"
        )
    if path.is_dir():
        raise _no_run(path)
    if not path.exists() and colon and re.fullmatch(r"\d+", number):
        raise _no_run(Path(run))
    if not path.exists() and colon and is_run(Path(run)):
        raise InputError(f"{spec}: is no number of a proposal: `{command('archive', run)}` lists them")
    if not path.exists() and re.fullmatch(r"\d+", path.name):
        raise _no_run(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as e:
        names = [*seed_names(), *method_names()]
        hint = "`evolve list` has them" if path.suffix else nearest(spec, names)
        raise unreadable(spec, e, f"give a file, RUN:ID or a shipped name ({hint})") from None
    if path.suffix in (".yaml", ".yml"):
        raise InputError(f"{spec}: is a YAML file, not a program: give experiments with --experiments {spec}")
    if path.suffix == ".json":
        beside = path.with_name(path.name.removesuffix(".json").removesuffix(".trees") + ".py")
        remedy = f"the program is {beside}" if beside.is_file() else "name a file of program text, MY.py"
        raise InputError(f"{spec}: is JSON, as the record beside a program, not a program: {remedy}")
    program = parse(raw, spec)
    if caps is not None:
        enforce(program, caps, f"{spec}:1")
    check_units(program, spec)
    program = with_forest(program, path)
    beside = path.with_suffix(".json")
    record = _record(read_bytes(beside) if path.suffix == ".py" and beside.is_file() else None, str(beside))
    foreign = _foreign(record, program, beside) if record is not None else ""
    return Source(spec, raw.decode(), program, None if foreign else record, foreign)


def _foreign(record: Record, program: Program, beside: Path) -> str:
    """The reason why this record, in the file `beside`, is not the program's; "" if it is."""
    if record.key != key(complete(program)):
        return f"{beside} is the record of another program, so nothing in it counts: fit this one"
    if edited := _edited(record, program):
        return (
            f"constants were changed by hand ({', '.join(edited)}), so nothing in {beside} counts: fit the program, or "
            "give them back their values"
        )
    return ""


def _edited(record: Record, program: Program) -> list[str]:
    """The constants that do not have the values of the record, by `method.name`; none if it keeps no values."""
    if record.values is None:
        return []
    old, new = record.values, constant_values(program)
    gone, added = [name for name in old if name not in new], [name for name in new if name not in old]
    if sorted(old[name] for name in gone) == sorted(new[name] for name in added):
        gone, added = [], []  # names alone change no prediction
    return [*(name for name in old if name in new and new[name] != old[name]), *gone, *added]


def constant_values(program: Program) -> dict[str, float]:
    """The values of the constants by `method.name`, with every timed method written out."""
    return {f"{f.name}.{c.name}": c.value for f in complete(program).functions for c in f.constants}


def _no_run(path: Path) -> InputError:
    """The error for a path that looks like a run and is none."""
    if not path.exists():
        return InputError(f"{path}: there is no such run: `{command('list')}` names the runs")
    if any(path.glob("programs/*.py")):
        return InputError(f"{path}: is a folder without a run: name one of the programs in {path / 'programs'}")
    return InputError(f"{path}: is no run and no program: give a file, or RUN:ID of a run that `evolve list` names")


def write_program(path: Path, text: str, forest: Forest | None, kept: Record) -> None:
    """Write a program's text, with its ensemble and its record next to it, as `load` reads them. Raises OSError.

    Links are followed, for the user named the file.
    """
    if forest:  # first: without it the program cannot be read
        write_json(forest_file(path).resolve(), forest.to_json())
    write_text(path.resolve(), text)
    write_json(path.with_suffix(".json").resolve(), replace(kept, values=constant_values(parse(text))).to_json())


def has_record(program: Path) -> bool:
    """Return True if a fit, or a blend, wrote this program."""
    return program.with_suffix(".json").exists()


def _record(text: str | bytes | None, where: str) -> Record | None:
    if text is None:
        return None
    return read_record(parse_json(text, where, "correct or remove the record next to the program"), where)


def proposal_of(spec: str) -> tuple[RunFolder, Outcome] | None:
    """The run and the outcome of the proposal that RUN:ID names; None if `spec` is something else.

    Raises InputError if the run has no such proposal, or is damaged.
    """
    path, colon, number = spec.rpartition(":")
    if not (colon and re.fullmatch(r"\d+", number) and is_run(Path(path))):
        return None
    run = open_run(Path(path))
    return run, _numbered(run, run.outcomes(), int(number))


def of_run(run: RunFolder, outcomes: Iterable[Outcome], number: int) -> Source:
    """The program of this number in a run with these outcomes. Raises InputError if there is none."""
    return source_of(run, _numbered(run, outcomes, number))


def _numbered(run: RunFolder, outcomes: Iterable[Outcome], number: int) -> Outcome:
    """The outcome of the proposal with this number. Raises InputError if there is none."""
    for outcome in outcomes:
        if outcome.proposal.id == number:
            return outcome
    raise InputError(f"{run.path}:{number}: no such proposal: `{command('archive', run.path)}` lists the ids")


def with_true_names(elite: Elite) -> Elite:
    """The elite as it is shown, reported and emitted: its constants have names that say what they multiply, and no
    argument of a max or min is one that never counts.

    The journal keeps the program that the search compared, and its size. Values, errors and the key are the same.
    """
    shorter = without_dominated(elite.program)
    if shorter != elite.program:
        text, n, fields = unparse(shorter), operations(shorter), len(features(shorter))
        elite = replace(elite, text=text, operations=n, constants=constants(shorter), features=fields)
    program = truthful(shorter, authored=elite.operator.startswith((SEED, MODEL)))
    return elite if program == shorter else replace(elite, text=unparse(program))


def source_of(run: RunFolder, outcome: Outcome) -> Source:
    """The program of a run's outcome, with true names. Raises InputError if it was rejected."""
    name = f"{run.path}:{outcome.proposal.id}"
    if outcome.rejection:
        stage, why = outcome.rejection.stage, outcome.rejection.why
        raise InputError(f"{name}: was rejected at {stage} ({why}): choose another id")
    assert outcome.elite
    elite = with_true_names(outcome.elite)
    return Source(name, elite.text, elite.program, record_of(run, elite, outcome.proposal))
