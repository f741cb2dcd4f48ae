"""The entry point: the group of all commands; errors become one line and an exit status here only.

Exit status: 0 done; 1 failed, refused by a gate, or no language model answered; 2 wrong input; 130 interrupted;
141 nobody reads standard output any more, as after `| head`.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from difflib import get_close_matches
from typing import Any

import click

from evolve import __version__, processes
from evolve.cli.endings import Ended, fail
from evolve.cli.values import StrictGroup
from evolve.output.terminal import begin, research, say, warn
from evolve.processes import WorkStopped
from simulator.common.errors import InputError, shown

processes.settle()

STDOUT = "standard output"  # its name in messages
COMPLETION = "_EVOLVE_COMPLETE"  # of the environment, see evolve.cli.completion
EPILOG = "Start with: evolve run --budget 1000; or evolve predict --id llama-2-7b-tp1-general"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
OUT_OF_MEMORY = (
    "out of memory: use fewer --workers, a shorter load or trace, or allow more memory (`ulimit -v`); "
    "a run keeps its work, `evolve resume RUN` continues it"
)
# Headings of `evolve --help`, and under each the commands: name -> (module, command in it, first sentence of its help).
GROUPS = {
    "Plan": {
        "plan": ("plan", "plan", "Rank the deployments that serve a load within limits: GPUs, dollars, certainty."),
        "predict": ("predict", "predict", "Predict TTFT, ITL and E2E, and sweep rates, GPUs and settings."),
        "sensitivity": ("sensitivity", "sensitivity", "Show how predicted latencies react to each engine setting."),
        "kernels": ("kernels", "kernels", "Show where the time of a step goes, from measured kernels."),
        "probe": ("probe", "probe", "Choose the runs to measure next, for the surest predictions."),
    },
    "Your data": {
        "ingest": ("ingest", "ingest", "Make experiments from vLLM traces and load-generator reports."),
        "fit": ("fit", "fit", "Fit the constants of a program to experiments."),
        "drift": ("drift", "drift", "Check whether a program still predicts new runs."),
        "model": ("models", "model", "Add your own models, so that every command knows them by name."),
    },
    "Search": {
        "run": ("search", "run", "Search for latency models, and report the best."),
        "pilot": ("search", "pilot", "Repeat a short search on one model: does a full search pay?"),
        "resume": ("search", "resume", "Continue a run exactly where it was interrupted."),
        "validate": ("validate", "validate", "Measure held-out errors: repeat the search without each fold."),
        "llm": ("llm", "llm", "Look at questions to language models, and check a model before a run."),
    },
    "Look": {
        "list": ("look", "list_", "List runs, programs, configurations, experiments, models and GPUs."),
        "archive": ("look", "archive", "Show the programs that a run kept."),
        "show": ("show", "show", "Show a program; explain, diagnose, ablate or check it."),
        "score": ("score", "score", "Score a program on measured runs as others do: TPOT, TTFT and their shape."),
        "report": ("report", "report", "Report on a program in ten dimensions, for a team that decides."),
        "plot": ("plot", "plot", "Draw a picture of a run or a program."),
        "view": ("view", "view", "Follow runs in a browser."),
    },
    "Take away": {
        "emit": ("host", "emit", "Write a program as Go for the host simulator."),
        "simulate": ("simulate", "simulate", "Replay a trace or a load exactly as the host simulator does."),
        "export": ("export", "export", "Write a run or a program for other tools."),
        "bench": ("host", "bench", "Measure the speed of replays and candidates on this machine."),
    },
}
COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}
# Commands of earlier releases -> how they are called now. The old names work until 0.6.
RENAMED = {
    "ablate": ("show", "--ablate"),
    "blend": ("fit", "--blend"),
    "check": ("show", "--check"),
    "diagnose": ("show", "--diagnose"),
    "explain": ("show", "--explain"),
    "llm-check": ("llm", "check"),
    "prompt": ("llm", "prompt"),
    "score-steps": ("fit", "--score-steps"),
}
# Commands of a clone of the project.
RESEARCH = ("baselines", "leaderboard")


class LazyGroup(StrictGroup):
    """A group that imports a command's module when the command is named, so that `evolve --help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, *rest = args
        if name in RESEARCH:
            where = f"In a clone, run `{research(*args)}`."
            raise Ended(f"cannot run {name}: it is part of a clone of the project, not of the package. {where}", 2)
        if name in RENAMED:
            warn(f"`evolve {name}` is now `evolve {' '.join(RENAMED[name])}`; the old name works until 0.6")
            if name == "score-steps":
                rest = [arg.replace("--split", "--part", 1) for arg in rest]
            return super().resolve_command(ctx, [*RENAMED[name], *rest])
        if name not in COMMANDS and not name.startswith("-"):
            near = get_close_matches(name, [*COMMANDS, *RENAMED], 1)
            remedy = f"Did you mean `evolve {near[0]}`?" if near else "`evolve --help` lists the commands."
            raise Ended(f"cannot run {shown(name)}: no such command. {remedy}", 2)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        processes.check_memory()
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"evolve.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, _, text) in commands.items()])


@click.group(cls=LazyGroup, context_settings=CONTEXT, epilog=EPILOG)
@click.version_option(__version__, prog_name="evolve")
def cli() -> None:
    """Evolve latency models of LLM serving from measurements, and emit the winner as Go.

    A search proposes small programs (step time, queueing delay), fits their constants, scores each by replaying real
    serving runs, and keeps a Pareto archive. PROGRAM is a file, RUN:ID, or a shipped name such as `champion`.
    """


def main(group: click.Group | None = None, name: str = "") -> None:
    """Run `evolve`, or the commands of another `group`, with the process's arguments, and exit. `name`: see
    `run_command`."""
    # a service manager's request to stop is handled like Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    closed = sys.stdout is None
    _open_streams()
    status = (
        fail("standard output is closed: send it to a file", 1) if closed else run_command(sys.argv[1:], group, name)
    )
    try:
        sys.stdout.flush()
    except Unread:
        status = _unread()
    except OSError as e:  # what was printed last did not fit
        status = _failed(e)
    sys.exit(status)


class Unread(Exception):
    """Nobody reads standard output any more. It is no OSError: click and rich would end with status 1."""


class _Output(io.FileIO):
    """Standard output that names itself when it fails, as files do."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise Unread from None
        except OSError as e:
            raise OSError(e.errno, e.strerror, STDOUT) from None


def _open_streams() -> None:
    """Prepare standard output, and connect streams that the caller closed to nothing.

    Otherwise a file that is opened in a closed stream's place would receive its output. What the encoding of standard
    output cannot hold is spelled as in Python.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115
    before = sys.stdout or sys.stderr
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(1, "w", closefd=False)),
        before.encoding,
        before.errors if before.errors in ("replace", "ignore", "xmlcharrefreplace") else "backslashreplace",
        line_buffering=bool(before.line_buffering),
    )


def run_command(args: list[str], group: click.Group | None = None, name: str = "") -> int:
    """Run one command line of `evolve`, or of another group, which has a `name` if it is no module of a clone. Return
    its exit status; errors are one line on stderr."""
    if COMPLETION in os.environ:  # a shell asks, and waits
        return int(importlib.import_module("evolve.cli.completion").respond())
    if nul := [arg for arg in args if "\0" in arg]:
        return fail(f"{shown(nul[0])} has a NUL character: no name of a file has one", 2)
    begin()
    try:
        name = name or (f"python -m {group.name}" if group else "evolve")
        return int((group or cli).main(args, prog_name=name, standalone_mode=False) or 0)
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.exceptions.NoArgsIsHelpError as e:
        say(e.format_message())
        return 0
    except click.UsageError as e:
        command = e.ctx.command_path if e.ctx else "evolve"
        return fail(f"{_in_plain_words(e)}: see `{command} --help`", 2)
    except click.ClickException as e:
        return fail(e.format_message(), 2)
    except InputError as e:
        return fail(str(e), 2)
    except Ended as e:
        return fail(e.message, e.status)
    except WorkStopped as e:
        return fail(str(e), 1)
    except MemoryError:
        return fail(OUT_OF_MEMORY, 1)
    except RecursionError:
        return fail("something that was read is nested too deeply: flatten it", 2)
    except (KeyboardInterrupt, click.Abort):
        return fail("interrupted", 130)
    except Unread:
        return _unread()
    except OSError as e:
        return _failed(e)


def _in_plain_words(error: click.UsageError) -> str:
    """The text of click's error, with only near options as suggestions and plain words for types."""
    if isinstance(error, click.NoSuchOption):
        name = error.option_name.lstrip("-")
        near = [o for o in error.possibilities or () if get_close_matches(name, [o.lstrip("-")])]
        error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    text = error.format_message().rstrip(".")
    if isinstance(error, click.BadParameter) and error.param and isinstance(error.param.type, click.IntRange):
        least = error.param.type.min
        whole = "is not a whole number" if least is None else f"is not a whole number of at least {least}"
        return text.replace("is not a valid integer range", whole)
    return text.replace("is not a valid float range", "is not a number").replace("a valid integer", "a whole number")


def _failed(error: OSError) -> int:
    """Name the file, or standard output, that failed in one line, and return the exit status."""
    if error.filename == STDOUT:
        _forget_output()
    if error.errno == errno.ENAMETOOLONG:
        return fail(f"{error.filename}: {error.strerror}: give a shorter one", 2)
    return fail(f"{error.filename or 'the system refused'}: {error.strerror or error}", 1)


def _unread() -> int:
    """The exit status after a reader such as `head` has closed the pipe; there is no message."""
    _forget_output()
    return 128 + signal.SIGPIPE


def _forget_output() -> None:
    """Discard the rest of the buffer of standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
