"""`evolve fit --blend`: the mean of a run's near-optimal programs as one program, with its errors next to theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from archive.champion import Rule, contenders
from archive.champion import champion as champion_of
from archive.elite import Elite
from archive.score import Errors, Score
from evaluator.ensemble import ensemble
from evaluator.score import SCORE_SEEDS, ScoreSet, error_rows, score_set, summarise
from evolve import __version__
from evolve.inspect.check import CheckVerdict, check, print_check
from evolve.output.columns import figures, words
from evolve.output.printing import note, prose, show
from evolve.output.table import Row, Table, arrival_seeds, row, section
from evolve.output.terminal import GO_FOLDER, command, say, suggest
from evolve.output.terms import legend
from evolve.run.folder import RunFolder, check_data, open_run
from evolve.run.program import Source, with_true_names
from evolve.run.program_files import files_for, save_program
from evolve.run.records import record, today
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.text import counted
from simulator.language.blend import blend
from simulator.language.complete import complete
from simulator.language.infer import check_units
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.measure import Caps, complexity, exceeded
from simulator.language.parse import parse
from simulator.language.source import ProgramError
from simulator.language.unparse import unparse
from simulator.serving.experiment import Experiment

CAPS = Caps(operations=120, conditionals=16, constants=48)  # a blend has the terms of many programs
TERMS = ("mean error", "group-out", "selection score", "complexity", "in sample")
FIGURES = """selection score, mean error and group-out: as in the search ({search}). E2E, TTFT, ITL and their mean:
mean absolute errors in sample ({report}), percent"""
HELD_OUT = """Held out, on the shipped runs, an ensemble's mean was better than the champion in 10 of 19 folds, worse in
9. Mean errors (champion): without each model 4.9 % (4.7), workload 4.7 (4.4), TP degree 5.0 (5.3), file 5.7 (5.8);
without dense models or mixtures of experts 7.2 (11.0); see docs/results.md. Such differences are within chance, so a
run's champion remains a single program, which is smaller."""


@dataclass(frozen=True, slots=True)
class BlendMember:
    """A program of the run: its errors in the search, and those of reports in sample, in percent.

    selection score: None if it takes a leave-group-out error that was not measured.
    """

    id: int
    key: str
    selection_score: float | None
    mean_error: float
    group_out: float | None
    complexity: int
    in_sample: Score

    def to_json(self) -> JsonObject:
        return {**asdict(self), "in_sample": _means(self.in_sample)}


@dataclass(frozen=True)
class Blend:
    """The mean of `members`, the gates it was held to, its errors in sample, and its file (None: not written).

    replaced: whether the file had a program of an earlier fit, or blend. options: what other commands must be given to
    read the file, because it is larger than their default caps.
    """

    run: str
    data: str
    search_seeds: tuple[int, ...]
    members: tuple[BlendMember, ...]
    champion: BlendMember
    verdict: CheckVerdict
    score: Score
    out: Path | None
    replaced: bool

    @property
    def program(self) -> Program:
        return self.verdict.description.source.program

    @property
    def options(self) -> list[str]:
        beyond = exceeded(self.program, Caps())
        return [word for what, (n, _) in beyond.items() for word in (f"--max-{what}", str(n))]

    def to_json(self) -> JsonObject:
        about = {"engine": __version__, "data": self.data, "seeds": list(SCORE_SEEDS), "run": self.run}
        members = {"members": [m.to_json() for m in self.members], "champion": self.champion.to_json()}
        errors = {"in_sample": _means(self.score), "errors": [r._asdict() for r in self.score.rows]}
        out = {"options": self.options, "out": str(self.out) if self.out else None}
        return {**self.verdict.to_json(), **about, **members, **errors, **out}


def _means(score: Score) -> JsonObject:
    return {name: getattr(score, name) for name in ("mean_error", "e2e", "ttft", "itl", "worst3")}


def blend_run(run: RunFolder, top: int | None, caps: Caps, out: Path | None) -> Blend:
    """The mean of the run's ensemble, or of its `top` best contenders, written to `out` unless a gate refuses it.

    Raises InputError if there is nothing to average, if the blend exceeds the caps, or if `out` cannot be written.
    """
    [path] = files_for(out, "blend", None)
    replaced = path is not None and path.exists()
    fitted, _ = run.experiments()
    check_data(run, fitted)
    elites = run.archive().members()
    best, (_, rule) = champion_of(elites, run.config.score.rule), contenders(elites, run.config.score.rule)
    if best is None:
        raise InputError(f"{run.path}: no candidate could be scored: `{command('resume', run.path)}` shows why")
    members = _members(run, elites, top)
    program = blend([with_true_names(e).program for e in members], _doc(run, members))
    if beyond := exceeded(program, caps):
        raise _too_large(run, elites, len(members), beyond, caps)
    program = _readable(program, len(members), run)
    source = Source(str(path) if path else "blend", unparse(program), program)
    verdict = check(source, run.config.score.physics, fitted)
    data = score_set(fitted)
    score = summarise(error_rows(source.complete, data))
    if path and verdict.ok:
        _write(path, run, source, fitted, score.rows)
    seeds, averaged = tuple(run.config.score.arrival_seeds), tuple(_found(e, rule, data) for e in members)
    written = path if verdict.ok else None
    about = str(run.path), run.about.data, seeds
    return Blend(*about, averaged, _found(best, rule, data), verdict, score, written, replaced and verdict.ok)


def _members(run: RunFolder, elites: Sequence[Elite], top: int | None) -> list[Elite]:
    """The ensemble, or the `top` contenders of different form with the lowest selection score."""
    if top is None:
        members = ensemble(elites, run.config.score.rule)
        if len(members) < 2:
            raise InputError(f"{run.path}: its ensemble is one program, which needs no average: give --top")
        return members
    best = _best(run, elites)
    if len(best) < top:
        count = counted(len(best), "program")
        raise InputError(f"--top {top}: {run.path} has {count} to choose from: give fewer, or search longer")
    return best[:top]


def _best(run: RunFolder, elites: Sequence[Elite]) -> list[Elite]:
    candidates, rule = contenders(elites, run.config.score.rule)
    by_key: dict[str, Elite] = {}
    for elite in sorted(candidates, key=lambda e: (rule.selection_score(e), e.id)):
        by_key.setdefault(elite.key, elite)
    return list(by_key.values())


def _doc(run: RunFolder, members: Sequence[Elite]) -> str:
    return f"The mean of the programs {', '.join(str(e.id) for e in members)} of {run.path}."


def _too_large(
    run: RunFolder, elites: Sequence[Elite], members: int, beyond: Mapping[str, tuple[int, int]], caps: Caps
) -> InputError:
    """The error of a blend beyond the caps: how many of the best contenders stay within them, and the caps it needs."""
    best = [with_true_names(e).program for e in _best(run, elites)[: members - 1]]
    within = (top for top in range(len(best), 1, -1) if not exceeded(blend(best[:top], ""), caps))
    top = next(within, None)
    fewer = f"average the best {top} with --top {top}" if top else "average fewer with --top"
    counts = ", ".join(f"{n} {what} (at most {cap} are allowed)" for what, (n, cap) in beyond.items())
    options = " ".join(f"--max-{what} {n}" for what, (n, _) in beyond.items())
    return InputError(f"{run.path}: the mean of {members} programs has {counts}: {fewer}, or give {options}")


def _readable(program: Program, members: int, run: RunFolder) -> Program:
    name = f"{run.path}: the mean of {members} programs"
    try:
        parse(unparse(program))
    except ProgramError as e:
        reason = str(e).split(": ")[1]
        raise InputError(f"{name} cannot be read as a program ({reason}): average fewer with --top") from None
    return check_units(program, name)


def _found(elite: Elite, rule: Rule, data: ScoreSet) -> BlendMember:
    score = summarise(error_rows(complete(elite.program), data))
    selection_score = rule.measured_selection_score(elite)
    return BlendMember(elite.id, elite.key, selection_score, elite.mean_error, elite.group_out, elite.complexity, score)


def _write(path: Path, run: RunFolder, source: Source, fitted: Sequence[Experiment], errors: Sequence[Errors]) -> None:
    """Write the program, and its record next to it. No fit determined its constants, so the record knows none."""
    kept = record(key(source.complete), fitted, errors, SCORE_SEEDS, today())
    kept = replace(kept, fitted_from=str(run.path), constants={})
    save_program(path, source.text, source.program.forest, kept)


def print_blend(result: Blend, explain: bool = False) -> None:
    """Print the program, its errors next to those of its members and of the champion, its gates, and its file."""
    say(result.verdict.description.source.text)
    show(_table(result))
    if explain:
        search, report = arrival_seeds(result.search_seeds), arrival_seeds(SCORE_SEEDS)
        legend(*TERMS, also=FIGURES.format(search=search, report=report))
    print_check(result.verdict)
    note(HELD_OUT)
    if not result.verdict.ok:
        prose("Not written: a gate refuses it. Average other programs with --top.", "bold")
    elif result.out is None:
        prose("Not written: the same command with `--out blend.py` writes it.")
    else:
        prose(f"Written: {result.out}, with its record next to it.")
        if result.replaced:
            prose(f"Replaced: what an earlier fit, or blend, had written as {result.out}.")
        if result.options:
            prose(f"It is larger than the default caps: every command that reads it needs {' '.join(result.options)}.")
        own = open_run(Path(result.run)).own_options
        one = ["--id", result.score.rows[0].experiment] if own else []  # as after a run
        suggest(
            command("predict", result.out, *own, *result.options),
            command("emit", result.out, "--out", GO_FOLDER, *own, *one, *result.options),
        )


def _table(result: Blend) -> Table:
    blended = row("blend", None, None, None, complexity(result.program), *_errors(result.score), style="bold")
    best = _row(result.champion, f"champion {result.champion.id}")
    title = f"The mean of {len(result.members)} programs of {result.run}: errors in percent"
    columns = [words("program"), figures(".2f", "score", "mean error", "group-out"), figures("d", "complexity")]
    columns.append(figures(".2f", "E2E", "TTFT", "ITL", "mean"))
    return Table.of(title, columns, [*section([blended, best]), *(_row(m, str(m.id)) for m in result.members)])


def _row(found: BlendMember, name: str) -> Row:
    errors = found.selection_score, found.mean_error, found.group_out
    return row(name, *errors, found.complexity, *_errors(found.in_sample))


def _errors(score: Score) -> tuple[float | None, ...]:
    return score.e2e, score.ttft, score.itl, score.mean_error
