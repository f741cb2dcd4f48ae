"""`make champion`: ship the champion of a finished run, with the run that it comes from.

Writes champion.py (its text), champion.json (its record) and champion/ (configuration, identity, compressed journal and
validation log of the run: a run folder that `evolve archive` and `evolve show` can read).
"""

from __future__ import annotations

import lzma
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from archive.champion import champion
from evaluator.fit.fit import fit_set
from evaluator.fit.uncertainty import uncertainty
from evaluator.score import SCORE_SEEDS, error_rows, score_set
from evolve.output.files import write_json
from evolve.output.terminal import command
from evolve.run.folder import ABOUT, CONFIG, JOURNAL, RunFolder, open_run
from evolve.run.program import constant_values, with_true_names
from evolve.run.records import FoundBy, constant_records, record
from evolve.run.trust import TRUST_FILE
from evolve.run.validations import LOG
from simulator.common.errors import InputError
from simulator.common.files import write_text
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.unparse import unparse

SEEDS = Path("seeds")
LOWEST = {"mean_error": "mean error", "group_out": "leave-group-out error"}


def ship(path: Path) -> None:
    """Write the champion of the run at `path` into SEEDS. Raises InputError if the run has none."""
    run = open_run(path)
    best = champion(run.archive().members(), run.config.score.rule)
    if best is None:
        raise InputError(f"{path}: has no champion: `{command('resume', path)}`")
    fitted, _ = run.experiments()
    program = with_true_names(best).program
    whole = complete(program)
    kept = replace(
        record(key(whole), fitted, error_rows(program, score_set(fitted)), SCORE_SEEDS, run.about.started[:10]),
        constants=constant_records(uncertainty(whole, fit_set(fitted))),
        values=constant_values(program),
        found=FoundBy(best.id, best.mean_error, best.group_out),
    )
    write_text(SEEDS / "champion.py", unparse(replace(program, doc=_doc(run, len(fitted)))))
    write_json(SEEDS / "champion.json", kept.to_json())
    _pack(run, SEEDS / "champion")


def _doc(run: RunFolder, runs: int) -> str:
    rule = run.config.score.rule
    return (
        f"Found by `evolve run --config seeds/champion/{CONFIG}`, fitted on {runs} serving runs.\n\n"
        f"The simplest program within {100 * rule.within:g} % of the lowest {LOWEST[rule.by]}, by that configuration.\n"
        "champion.json has its errors on these runs, README.md held-out ones, champion/ the journal of the search.\n"
    )


def _pack(run: RunFolder, folder: Path) -> None:
    """Copy the run's files to `folder`, its journal compressed."""
    shutil.rmtree(folder, ignore_errors=True)  # nothing of another run may remain, such as its validation log
    folder.mkdir()
    for name in (CONFIG, ABOUT, LOG, TRUST_FILE):
        if (run.path / name).exists():
            shutil.copyfile(run.path / name, folder / name)
    packed = lzma.compress(run.journal.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    (folder / f"{JOURNAL}.xz").write_bytes(packed)


if __name__ == "__main__":
    ship(Path(sys.argv[1]))
