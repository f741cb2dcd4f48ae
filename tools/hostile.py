"""A campaign against the product: damaged files, bombs, foreign text, hostile programs, full disks, links, bare machines.

`python tools/hostile.py [--seed 0] [--only files,disk]`: a table of counts per part, exit status 1 if work was
lost, a command ended in a traceback, hung, or printed a control character. It takes ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import tiny_world
from llm_replies import bomb, endless, redirect, said
from llm_replies import status as answered_with
from llm_server import Server
from mutate import damaged_files
from tiny_world import ONE

from evolve.cli import run_command
from evolve.run.llm_settings import LlmSettings
from evolve.search.llm.client import CallFault, request
from simulator.common.text import hidden

BUDGET = 24
MUTATIONS = 3000
HANG_S = 120
EVOLVE = [sys.executable, "-m", "evolve"]


@dataclass
class Part:
    """What became of one part of the campaign."""

    tried: int = 0
    refused: int = 0  # by one line
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class World:
    """A folder to work in, a finished run in it, and the bytes of that run's journal."""

    home: Path
    config: Path
    whole: Path
    journal: bytes
    rng: random.Random

    def searching(self, out: Path, *more: str) -> list[str]:
        return [
            *EVOLVE,
            "run",
            "--config",
            str(self.config),
            "--budget",
            str(BUDGET),
            "--quiet",
            "--out",
            str(out),
            *more,
        ]

    def copy(self, name: str) -> Path:
        """A copy of the finished run."""
        path = self.home / name
        shutil.rmtree(path, ignore_errors=True)
        return Path(shutil.copytree(self.whole, path))


def made(home: Path, seed: int) -> World:
    config = tiny_world.write(home, ONE)
    with redirect_stdout(StringIO()):
        whole = tiny_world.run(config, home / "whole", "--budget", BUDGET)
    return World(home, config, whole, (whole / "journal.jsonl").read_bytes(), random.Random(seed))


class Hung(Exception):
    """A command did not end. It is no OSError, which commands handle."""


@contextmanager
def alarm() -> Iterator[None]:
    """Raises Hung when the body hangs."""

    def ring(*_: object) -> None:
        raise Hung(f"no answer in {HANG_S} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)


def attempt(part: Part, what: str, *args: object) -> int | None:
    """The exit status of a command in this process; a finding if it raises, hangs, or explains itself in several lines."""
    part.tried += 1
    out, err = StringIO(), StringIO()
    try:
        with alarm(), redirect_stdout(out), redirect_stderr(err):
            status = run_command([str(arg) for arg in args])
    except BaseException as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        part.findings.append(f"{place}: {''.join(traceback.format_exception_only(e)).strip()[:200]} ({what})")
        return None
    said = err.getvalue()
    part.refused += status == 2
    if [c for c in out.getvalue() + said if hidden(c) and c not in "\n\t"]:
        part.findings.append(f"{what}: a control character was printed")
    own = [
        line for line in said.splitlines() if line.startswith("evolve: ") and not line.startswith("evolve: warning: ")
    ]
    if status and (len(own) != 1 or not said.endswith(f"{own[0]}\n")):
        part.findings.append(f"{what}: status {status} with {said[:200]!r}")
    return status


def ended(part: Part, what: str, process: subprocess.CompletedProcess[str], *statuses: int) -> None:
    """Note a process that ended in another way than these, or in a traceback."""
    if process.returncode not in statuses or "Traceback" in process.stderr:
        part.findings.append(f"{what}: status {process.returncode}: {process.stderr[-400:]!r}")


def same(part: Part, what: str, world: World, run: Path) -> None:
    """Note a run whose journal is not that of the undisturbed one."""
    if (run / "journal.jsonl").read_bytes() != world.journal:
        part.findings.append(f"{what}: the journal differs from the undisturbed run's")


def finish(part: Part, what: str, world: World, run: Path) -> None:
    """Resume a run to its end, and compare it."""
    args = [*EVOLVE, "resume", str(run), "--workers", "1", "--quiet"]
    ended(part, what, subprocess.run(args, capture_output=True, text=True, check=False, timeout=HANG_S), 0)
    same(part, what, world, run)


def files(world: World, part: Part) -> None:
    """Damage the files of a run at random: commands refuse them in one line, or read them as they were."""
    damages: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda data: b"",
        "cut": lambda data: data[: world.rng.randrange(len(data))],
        "flipped": lambda data: _changed(data, world.rng, 1),
        "noise": lambda data: _changed(data, world.rng, 40),
        "line removed": lambda data: _lines(data, world.rng, lambda lines, i: lines[:i] + lines[i + 1 :]),
        "line repeated": lambda data: _lines(data, world.rng, lambda lines, i: lines[: i + 1] + lines[i:]),
        "lines swapped": lambda data: _lines(
            data, world.rng, lambda lines, i: [*lines[:i], *lines[i : i + 2][::-1], *lines[i + 2 :]]
        ),
        "digit": lambda data: _digit(data, world.rng),
        "deep": lambda data: b"[" * 20_000,
        "binary": lambda data: world.rng.randbytes(3000),
    }
    names = ("journal.jsonl", "run.json", "config.yaml", "report.json", "baseline_errors.json")
    for name in names:
        for what, change in damages.items():
            run = world.copy("damaged")
            damaged = change((run / name).read_bytes())
            (run / name).write_bytes(damaged)
            for command in ("archive", "show", "resume"):
                spec = f"{run}:1" if command == "show" else run
                more = ("--workers", 1, "--quiet") if command == "resume" else ()
                status = attempt(part, f"{name} {what}: {command}", command, spec, *more)
                whole = damaged.endswith(b"\n") or not damaged
                silent = name == "journal.jsonl" and damaged not in world.journal and whole and status == 0
                if silent and not world.journal.startswith(damaged):
                    part.findings.append(f"{name} {what}: {command} did not notice")
            shutil.rmtree(run)
    for name in names[:3]:
        run = world.copy("damaged")
        (run / name).unlink()
        for command in ("archive", "resume"):
            if attempt(part, f"{name} deleted: {command}", command, run) != 2:
                part.findings.append(f"{name} deleted: {command} went on")


def _changed(data: bytes, rng: random.Random, count: int) -> bytes:
    changed = bytearray(data)
    for _ in range(count):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _lines(data: bytes, rng: random.Random, change: Callable[[list[bytes], int], list[bytes]]) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(change(lines, rng.randrange(max(len(lines) - 1, 1))))


def _digit(data: bytes, rng: random.Random) -> bytes:
    places = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
    i = rng.choice(places)
    return data[:i] + (b"1" if data[i : i + 1] != b"1" else b"2") + data[i + 1 :]


ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)


def bombs(world: World, part: Part) -> None:
    """Files that expand, nest, count or last beyond all bounds, wherever a file is given."""
    deep, digits = "[" * 20_000 + "]" * 20_000, "9" * 1_000_000
    path = world.home / "bomb.yaml"
    places = {
        "id": "id: dense-chat",
        "model": "model: llama-2-7b",
        "hardware": "hardware: H100",
        "observed": "observed:",
        "stages": "stages: [{rate: 5.0, duration_s: 15}, {rate: 10.0, duration_s: 15}]",
    }
    texts = [
        ALIASES + tiny_world.DATA.replace(old, f"{key}: *a11", 1) for key, old in places.items() if key != "observed"
    ]
    texts += [
        tiny_world.DATA.replace(old, f"{old.split(':')[0]}: {value}", 1)
        for old in places.values()
        for value in (deep, digits, "{" * 9999, "!!python/name:os.system")
    ]
    number = ("prompt_len: 300", "output_len: 50", "rate: 5.0", "duration_s: 15")
    texts += [
        tiny_world.DATA.replace(old, f"{old.split(':')[0]}: {value}", 1)
        for old in number
        for value in ("1000000000000", "1e308", ".inf", "-1", "0", "1e-300")
    ]
    texts.append(
        tiny_world.DATA.replace("{rate: 5.0, duration_s: 15}", ", ".join(["{rate: 1.0, duration_s: 1}"] * 100_000))
    )
    for i, text in enumerate(texts):
        path.write_text(text)
        for command in (("predict", "champion"), ("fit", "floor", "--out", world.home / "f.py")):
            attempt(part, f"bomb {i}: {command[0]}", *command, "--experiments", path)
    for text in (deep, digits, ALIASES, '{"a":' * 9999):
        path.write_text(text)
        json_path = world.home / "bomb.json"
        json_path.write_text(text)
        attempt(part, "configuration", "run", "--config", path, "--quiet", "--out", world.home / "never")
        attempt(part, "config.json", "kernels", json_path, "--hardware", "H100")
        attempt(part, "model add", "model", "add", json_path)
        attempt(part, "case", "simulate", "--case", json_path, "--trace", json_path, "--out", world.home / "x.csv")
        attempt(part, "ingest", "ingest", path, "--out", world.home / "ingested")


def texts(world: World, part: Part) -> None:
    """Markup and control characters as ids, names and paths."""
    ids = (
        "q[/x]",
        "[tp1] chat",
        "[bold]x[/bold]",
        "[link=file:///x]y",
        "a\x1b[31mb",
        "a\u009b31mb",
        "a\u202eb",
        "a,b",
        "a\nb",
        "a|b",
        "`x`",
        "$(touch x)",
        "'; touch x",
        "../../x",
        "\\",
        "%s{0}",
        "\u0000",
        "é\u0301",
        " ",
        "",
    )
    for i, ident in enumerate(ids):
        home = world.home / f"texts-{i}"
        home.mkdir()
        data = tiny_world.DATA.replace("id: dense-chat", f"id: {json.dumps(ident)}", 1)
        path = home / "[x] e.yaml"
        path.write_text(data)
        attempt(part, f"{ident!r} predict", "predict", "champion", "--experiments", path)
        attempt(part, f"{ident!r} fit", "fit", "floor", "--experiments", path, "--out", home / "f [/x].py")
        attempt(part, f"{ident!r} emit", "emit", "champion", "--experiments", path, "--id", ident, "--out", home / "go")
        for file in (home / "go").glob("*"):
            if [c for c in file.read_text() if hidden(c) and c not in "\n\t"]:
                part.findings.append(f"{ident!r}: a control character in {file.name}")
        if any(p.name in ("x",) for p in (Path.cwd(), home, world.home) for p in p.glob("x")):
            part.findings.append(f"{ident!r}: something was executed")


def programs(world: World, part: Part) -> None:
    """Program texts that would do something if they were executed."""
    mark = world.home / "executed"
    effect = f"(print(1), __import__('pathlib').Path({str(mark)!r}).touch())"
    rows = """\
return {} | return b.tokens if {} else 1 | return max(b.tokens, {}) | x = {}; return x | return b[{}]
return [{} for _ in (1,)] | return (lambda: {})() | return f'{{{}}}' | assert {}; return 1 | raise {}
with {}: return 1 | global x; x = {}; return 1 | del {}; return 1 | return b.__class__.__mro__ | yield {}
return await {} | import os; return {} | try:;     return {}; finally: pass | while {}: pass"""
    bodies = [body.replace("; ", "\n    ") for row in rows.splitlines() for body in row.split(" | ")]
    whole = [f"def step_time(b, s):\n    {body.format(effect)}\n" for body in bodies]
    whole += [
        f"def step_time(b, s, c={effect}): return 1",
        f"@{effect}\ndef step_time(b, s): return 1",
        f"import os\n{effect}\ndef step_time(b, s): return 1",
        f"CONSTANTS = {{'a': {effect}}}",
    ]
    for i, text in enumerate(whole):
        path = world.home / f"hostile-{i}.py"
        path.write_text(text)
        for command in (("show", "--check"), ("show",), ("predict",), ("emit", "--out", str(world.home / "go"))):
            if attempt(part, f"program {i}: {command[0]}", command[0], path, *command[1:]) != 2:
                part.findings.append(f"program {i}: {command[0]} accepted it")
        if mark.exists():
            part.findings.append(f"program {i}: it was executed")
            mark.unlink()


def disk(world: World, part: Part) -> None:
    """Files that may not grow, folders that vanish, streams that are closed: one line, and nothing written is lost."""
    for i in range(12):
        part.tried += 1
        run = world.home / f"full-{i}"
        limit = int(len(world.journal) * (i + 0.5) / 11)

        def limited(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

        args = world.searching(run, "--workers", str(1 + i % 2))
        process = subprocess.run(args, capture_output=True, text=True, check=False, preexec_fn=limited, timeout=HANG_S)
        ended(part, f"limit {limit}", process, 0, 1, 2)
        if process.returncode and process.stderr.count("\n") != 1:
            part.findings.append(f"limit {limit}: {process.stderr[-300:]!r}")
        if (run / "journal.jsonl").exists():
            finish(part, f"limit {limit}", world, run)
    for i in range(4):
        part.tried += 1
        run = world.home / f"gone-{i}"
        child = subprocess.Popen(world.searching(run, "--workers", str(1 + i % 2)), stderr=subprocess.PIPE, text=True)
        while not (run / "journal.jsonl").exists() or (run / "journal.jsonl").stat().st_size < 3000:
            time.sleep(0.02)
        shutil.rmtree(run, ignore_errors=True) if i % 2 else run.rename(world.home / f"moved-{i}")
        _, err = child.communicate(timeout=HANG_S)
        ended(part, f"gone {i}", subprocess.CompletedProcess([], child.returncode, "", err), 1)
    for redirected, status in ((">&-", 1), (">/dev/full", 1), ("2>&-", 0), ("2>/dev/full", 0), ("<&-", 0)):
        for command in (["list", "--json"], ["archive", str(world.whole)], ["predict", "champion", "--json"]):
            part.tried += 1
            line = ["sh", "-c", f'exec "$@" {redirected}', "sh", *EVOLVE, *command]
            process = subprocess.run(line, capture_output=True, text=True, check=False, timeout=HANG_S)
            ended(part, f"{redirected} {command[0]}", process, status)
    for kilobytes in (300_000, 600_000, 900_000, 1_500_000):
        part.tried += 1
        line = ["sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh", *EVOLVE, "predict", "champion"]
        process = subprocess.run(line, capture_output=True, text=True, check=False, timeout=HANG_S)
        if "Traceback" in process.stderr:
            part.findings.append(f"ulimit -v {kilobytes}: {process.stderr[-300:]!r}")


def links(world: World, part: Part) -> None:
    """Links and pipes in a run's folder, and names that are too long: nothing outside changes, nothing is lost."""
    outside, writes = world.home / "outside", 0
    names = (".lock", "journal.jsonl", "run.json", "config.yaml", "report.json", "cpu.csv", "summary.md", "programs")
    for name in names:
        for kind in ("link", "dangling", "pipe"):
            run = world.copy("linked")
            shutil.rmtree(outside, ignore_errors=True)
            outside.mkdir()
            target, place = outside / "it", run / name
            if kind == "link":
                place.rename(target) if place.exists() else target.write_text("kept")
            elif place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
            os.mkfifo(place) if kind == "pipe" else place.symlink_to(target)
            before = _contents(outside)
            for command in ("list", "archive", "report", "resume"):
                spec = ("--runs", world.home) if command == "list" else (run, "--workers", 1, "--quiet")
                spec = spec[:1] if command == "archive" else spec
                attempt(
                    part,
                    f"{name} as {kind}: {command}",
                    command,
                    *(("--only", "accuracy") if command == "report" else ()),
                    *spec,
                )
            writes += _contents(outside) != before
    for length in (245, 251, 252, 300):
        for command in (
            ("fit", "floor", "--experiments", world.home / "data.yaml", "--out"),
            ("predict", "champion", "--experiments", world.home / "data.yaml", "--csv"),
        ):
            suffix = ".py" if command[0] == "fit" else ".csv"
            file = world.home / f"{'n' * (length - len(suffix))}{suffix}"
            if attempt(part, f"a name of {length} bytes: {command[0]}", *command, file) == 0 and not file.exists():
                part.findings.append(f"a name of {length} bytes: {command[0]} lost its result")
    if writes:
        part.findings.append(f"{writes} writes outside")


def _contents(folder: Path) -> list[tuple[str, int, bytes]]:
    """Every file below the folder, with its time and its bytes."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path), path.stat().st_mtime_ns, path.read_bytes()) for path in paths]


def network(world: World, part: Part) -> None:
    """Servers that answer without end, in bombs, with the key in disguise, or refer to others: a fault that tells nothing."""
    key = "sk-Hostile+4Zq/xK3v_Lm7T-w2Rb8Yd9"
    os.environ |= {"OPENAI_API_KEY": key, "NO_PROXY": "127.0.0.1"}
    disguised = (
        key,
        key[::-1],
        " ".join(key),
        "\n".join(key),
        b64encode(f"Bearer {key}".encode()).decode(),
        quote(key, ""),
    )
    with Server(lambda _: said("never")) as other:
        replies = [endless(2**24), bomb(2 * 10**8), redirect(f"{other.url}/chat/completions"), *map(said, disguised)]
        for reply in [*replies, *(answered_with(400, f"wrong key: {text}") for text in disguised)]:
            part.tried += 1
            with Server(lambda _, reply=reply: reply) as server, alarm():
                try:
                    told = str(request("openai/m", [("user", "x")], LlmSettings(api_base=server.url, attempts=1)))
                except CallFault as fault:
                    told, part.refused = str(fault), part.refused + 1
            if any(form[i : i + 12] in told for form in disguised for i in range(len(form) - 11)):
                part.findings.append(f"the key was printed: {told[:200]!r}")
        if other.seen:
            part.findings.append("a question went to another server")


def machine(world: World, part: Part) -> None:
    """Little memory, no home, an unwritable or shared cache, a narrow encoding: it works, or one line says why not."""
    shared = world.home / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    machines: dict[str, dict[str, str]] = {
        "no home": {"HOME": "/dev/null"},
        "no cache": {"NUMBA_CACHE_DIR": "/dev/null/x"},
        "empty cache": {"NUMBA_CACHE_DIR": ""},
        "shared cache": {"XDG_CACHE_HOME": str(shared)},
        "ascii": {"PYTHONIOENCODING": "ascii"},
        "C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    }
    path = world.home / "foreign.yaml"
    path.write_text(tiny_world.DATA.replace("id: dense-chat", "id: чат-模型", 1), "utf-8")
    for what, changed in machines.items():
        part.tried += 1
        args = [*EVOLVE, "predict", "champion", "--experiments", str(path)]
        environment = os.environ | changed
        process = subprocess.run(args, env=environment, capture_output=True, text=True, check=False, timeout=3 * HANG_S)
        ended(part, what, process, 0)
        if process.stderr.count("evolve: warning: compiled code") != (what == "no cache"):
            part.findings.append(f"{what}: {process.stderr[-300:]!r}")


def mutated(world: World, part: Part) -> None:
    """Wrong values, lines and bytes in the files that commands read: refused in one line, or read."""
    for what, command in damaged_files(world.home, world.rng, MUTATIONS):
        attempt(part, what, *command)


PARTS = {part.__name__: part for part in (files, bombs, texts, programs, disk, links, network, machine, mutated)}


def main() -> int:
    """Carry out the campaign, print a line per part and the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    given = parser.parse_args()
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EVOLVE_MODELS"] = str(Path(folder) / "models")
        world = made(Path(folder), given.seed)
        print("part       tried  refused in a line  findings   s", flush=True)
        for name in given.only.split(","):
            part, since = Part(), time.monotonic()
            PARTS[name](world, part)
            print(
                f"{name:9}{part.tried:7}{part.refused:19}{len(part.findings):10}{time.monotonic() - since:6.0f}",
                flush=True,
            )
            findings += [f"{name}: {finding}" for finding in part.findings]
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
