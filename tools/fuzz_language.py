"""Bad texts by the hundred thousand: each is a program that survives all that comes before scoring, or one complaint.

`python tools/fuzz_language.py --texts 100000 --seed 0`; with `--atheris` coverage guides the damage. Exit status 1 when
there was a finding; its text is kept in a file.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import io
import random
import re
import sys
import tempfile
import time
import unicodedata  # noqa: F401  `ast.parse` itself loads it, for the first name that is not ASCII
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from hostile_texts import Text, as_bytes, corpus, damage, texts

from simulator.common.errors import InputError
from simulator.language import measure
from simulator.language.affine import affine
from simulator.language.bounds import bounds
from simulator.language.complete import complete
from simulator.language.infer import check_units
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.language.simplify import lean
from simulator.language.source import MAX_BYTES
from simulator.language.unparse import unparse
from simulator.schema import FIELDS
from translate_go.emit import emit
from translate_go.target import TARGETS

MOST_CHARACTERS = 400  # of a complaint
SLOW_MS = 1000  # of processor time: a finding. Well under 100 is what is wanted, and what is reported.
HANG_S = 60  # then the run ends with a traceback
GO_EVERY = 10  # accepted texts

# what becomes of a text


def read(text: Text) -> tuple[str, Program | None]:
    """ "accepted" and the program, or the kind of complaint. AssertionError where a rule is broken."""
    with nothing_but_computation():
        try:
            return "accepted", parse(text)
        except InputError as e:
            checked_complaint(str(e), text)
            return kind(str(e)), None


def follow(program: Program) -> bool:
    """Everything between a program's text and its score; whether it is within the caps, else it goes half the way."""
    with nothing_but_computation():
        text = unparse(program)
        again = parse(text)
        assert again == program and unparse(again) == text, "the text does not read back"
        over = measure.complaints(program, measure.Caps())
        for complaint in over:
            checked_complaint(f"program:1: {complaint}", text)
        whole = complete(program)
        variants = (program, whole, lean(whole))
        for variant in variants:
            assemble(variant)
        if over:
            return False
        try:
            check_units(again, "program")
        except InputError as e:
            checked_complaint(str(e), text)
        form = key(program)
        assert re.fullmatch("[0-9a-f]{16}", form) and form == key(again), "the key is not the form's"
        for variant in variants:
            limits = bounds(variant)
            assert len(limits) == len(variant.theta) and all(low <= high for low, high in limits), limits
        for function in whole.functions:
            affine(function)
    return True


def follow_in_go(program: Program) -> None:
    with nothing_but_computation():
        for target in TARGETS:
            emit(complete(program), target=target)


def checked_complaint(message: str, text: Text) -> None:
    assert message.isprintable() and len(message) <= MOST_CHARACTERS, message
    parts = re.fullmatch(r"program:([1-9]\d*): .+: .+", message)
    assert parts, f"no place or no remedy: {message}"
    ends = re.findall(r"\r\n?|\n", text) if isinstance(text, str) else re.findall(rb"\r\n?|\n", text)
    assert int(parts[1]) <= len(ends) + 1, f"no such line: {message}"


def kind(message: str) -> str:
    """The complaint without its particulars."""
    why = message.split(": ", 1)[1]
    particulars = r"\(.*\)(?=:)|(['\"]).*\1|\b[bsr]\.\w+|(?<![\w-])-?\d[\w.+-]*|(?<=: )did you mean.*|(?<=e\.g\. )\w+="
    return re.sub(particulars, "...", why)


_events: list[str] | None = None  # what the audit hook saw; None while nothing is watched
_hooked = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    of_ast_parse = (event == "compile" and args[1] == "") or (event == "open" and args[0] == "")  # no code, no file
    if _events is None or of_ast_parse:
        return
    _events.append(f"{event} {args}"[:MOST_CHARACTERS])
    raise AssertionError(_events[-1])


@contextmanager
def nothing_but_computation() -> Iterator[None]:
    """Fails if the block runs, imports or opens anything, prints or warns."""
    global _events, _hooked
    if not _hooked:  # it cannot be taken away again
        sys.addaudithook(_hook)
        _hooked = True
    modules, said = set(sys.modules), io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        gc.freeze()  # what earlier garbage does when it is collected is no text's doing
        _events = seen = []
        try:
            yield
        finally:
            _events = None
            gc.unfreeze()
    assert not seen, seen
    assert not warned and not said.getvalue(), (list(map(str, warned)), said.getvalue())
    assert set(sys.modules) == modules, set(sys.modules) ^ modules


# runs


class Findings:
    """The shortest text of every kind of broken rule, kept in a file each."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.kept: dict[str, tuple[int, Path]] = {}

    def note(self, text: Text, error: BaseException) -> None:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        line = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else ""
        what = f"{type(error).__name__} at {line}"
        raw = as_bytes(text)
        size, path = self.kept.get(what, (len(raw) + 1, self.out / f"finding-{len(self.kept) + 1}"))
        if len(raw) < size:
            self.kept[what] = (len(raw), path)
            path.write_bytes(raw)
            print(f"finding: {what}: {error}: {path}"[:1000], flush=True)


def warm() -> Program:
    """What the first program of all loads is no text's doing."""
    fields = ", ".join(f"b.{name}" for owner, name in FIELDS if owner == "b")
    program = complete(parse(f"def step_time(b, s): return max({fields})".encode()))
    key(program)
    assemble(program)
    return program


def run(count: int, seed: int, out: Path) -> int:
    """Prints what became of the texts; 1 if there was a finding."""
    first = warm()
    for target in TARGETS:
        emit(first, target=target)
    findings, verdicts = Findings(out), Counter[str]()
    slowest: dict[str, list[tuple[float, int]]] = {"read": [], "follow": [], "follow in Go": []}
    in_hand = out / "in-hand"  # should the interpreter itself give up

    def timed(what: str, i: int, action: Callable[..., Any], argument: Any) -> Any:
        began = time.process_time()
        result = action(argument)
        ms = (time.process_time() - began) * 1e3
        slowest[what] = sorted([*slowest[what], (ms, i)], reverse=True)[:3]
        assert ms < SLOW_MS, f"{what} takes {ms:.0f} ms"
        return result

    for i, text in enumerate(texts(seed, count)):
        in_hand.write_bytes(as_bytes(text))
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            verdict, program = timed("read", i, read, text)
            verdicts[verdict] += 1
            if program is not None:
                within = timed("follow", i, follow, program)
                if within and verdicts["accepted"] % GO_EVERY == 0:
                    timed("follow in Go", i, follow_in_go, program)
        except Exception as e:
            verdicts["broken rules"] += 1
            findings.note(text, e)
    faulthandler.cancel_dump_traceback_later()
    in_hand.unlink(missing_ok=True)
    print(f"{count} texts of seed {seed}, {len(findings.kept)} kinds of finding" + (f" in {out}" * bool(findings.kept)))
    for what, longest in slowest.items():
        print(f"slowest to {what}: " + ", ".join(f"{ms:.0f} ms (text {i})" for ms, i in longest))
    for verdict, n in verdicts.most_common():
        print(f"{n:8} {verdict}")
    return 1 if findings.kept else 0


def run_atheris(count: int, seed: int, out: Path) -> int:
    """Coverage of `simulator.language` guides the damage; libFuzzer reports, and ends the process."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install evolve-latency[fuzz]", file=sys.stderr)
        return 2
    warm()
    for name in sorted(m for m in sys.modules if m.startswith("simulator.language.")):
        for item in list(vars(sys.modules[name]).values()):
            for function in [item, *vars(item).values()] if isinstance(item, type) else [item]:
                if getattr(function, "__module__", None) == name and hasattr(function, "__code__"):
                    atheris.instrument_func(function)
    written, examples = corpus(), out / "corpus"
    examples.mkdir(exist_ok=True)
    for i, text in enumerate(written):
        (examples / f"{i:04}").write_bytes(as_bytes(text))

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        text = data.decode("utf-8", "replace")
        return as_bytes(damage(rng, text, written))[:most]

    def one(data: bytes) -> None:
        program = read(data)[1]
        if program is not None:
            follow(program)

    arguments = [f"-runs={count}", f"-seed={seed + 1}", f"-max_len={MAX_BYTES}", f"-timeout={HANG_S}"]
    atheris.Setup(
        [sys.argv[0], *arguments, f"-artifact_prefix={out}/", str(examples)],
        one,
        custom_mutator=mutated,
    )
    atheris.Fuzz()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--texts", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where findings are kept [default: a temporary folder]")
    parser.add_argument("--atheris", action="store_true", help="let coverage guide the damage")
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="fuzz-language-"))
    out.mkdir(parents=True, exist_ok=True)
    chosen: Callable[[int, int, Path], int] = run_atheris if given.atheris else run
    return chosen(given.texts, given.seed, out)


if __name__ == "__main__":
    sys.exit(main())
