"""The entry point: the group of all commands, and the one place where errors become a line and an exit status.

Exit status: 0 done; 1 failed, a gate said no, or no language model answered; 2 anything the user supplied was wrong;
130 interrupted; 141 nobody reads standard output any more, as after `| head`.
"""

from __future__ import annotations

import importlib
import io
import os
import resource
import signal
import sys
from difflib import get_close_matches
from typing import Any

import click

from evolve import __version__, processes
from evolve.cli.endings import Ended, fail
from evolve.cli.values import StrictGroup
from evolve.output.terminal import research, say
from evolve.processes import WorkStopped
from simulator.common.errors import InputError

processes.settle()

STDOUT = "standard output"  # its name in messages
COMPLETION = "_EVOLVE_COMPLETE"  # of the environment, see evolve.cli.completion
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
OUT_OF_MEMORY = (
    "out of memory: use fewer --workers, a shorter load or trace, or allow more memory (`ulimit -v`); "
    "a run keeps its work, `evolve resume RUN` continues it"
)
LEAST_BYTES = 1 << 30  # of address space: with less, the libraries that a command loads fail in ways of their own
# name: (module, the command in it, the first sentence of its help); in the order of `evolve --help`
COMMANDS = {
    "run": ("search", "run", "Search for latency models and report the best."),
    "pilot": ("search", "pilot", "Repeat a short search on a single model: is a full one worth it?"),
    "resume": (
        "search",
        "resume",
        "Continue a run, or repeats of one, after an interruption, exactly as if there had been none.",
    ),
    "archive": ("runs", "archive", "Show what a run kept, rebuilt from its journal."),
    "validate": (
        "validate",
        "validate",
        "Measure held-out errors of a run: repeat the whole search in every fold, without what the fold holds out.",
    ),
    "view": ("view", "view", "Show runs in a browser, while they search and afterwards."),
    "show": ("programs", "show", "Show a program: text, size, constants, dot products, and what it reached."),
    "check": ("programs", "check", "Check a program as a search would: language, caps, units and gates."),
    "blend": ("blend", "blend", "Average the near-optimal programs of a run into one program."),
    "fit": ("programs", "fit", "Fit a program's constants to experiments."),
    "report": (
        "report",
        "report",
        "Report on a program in ten dimensions, for a team that decides whether to adopt it.",
    ),
    "predict": ("predict", "predict", "Predict TTFT, ITL and E2E of experiments."),
    "ablate": (
        "ablation",
        "ablate",
        "Drop each part of a program in turn, fit the rest again, and say which parts earn their place.",
    ),
    "drift": ("drift", "drift", "Check new runs for drift: do a program's constants, and its form, still hold?"),
    "sensitivity": (
        "sensitivity",
        "sensitivity",
        "Show how far predicted latencies move with each setting of the engine.",
    ),
    "explain": (
        "explain",
        "explain",
        "Explain a program's predictions: what they are made of, what each term means, and where it comes from.",
    ),
    "diagnose": (
        "explain",
        "diagnose",
        "Show where and why a program is wrong, as questions to language models do.",
    ),
    "plot": ("plot", "plot", "Draw a picture of a run: front, history, grid, fit or terms."),
    "probe": ("probe", "probe", "Choose the runs to measure next, so that predictions become surer."),
    "ingest": (
        "ingest",
        "ingest",
        "Make experiments and tables from folders of vLLM traces and load-generator reports.",
    ),
    "score-steps": ("steps", "score_steps", "Score a program's step_time on sampled scheduler steps."),
    "kernels": ("kernels", "kernels", "Show where a step's time goes, from measured kernels."),
    "prompt": (
        "prompt",
        "prompt",
        "Print what a language model would be sent to improve a program of a run, or was sent.",
    ),
    "llm-check": (
        "llm_check",
        "llm_check",
        "Ask a language model one question of a run, and say what the answer costs and how much of it is usable.",
    ),
    "simulate": (
        "simulate",
        "simulate",
        "Replay a trace, or an experiment's load, exactly as the host simulator does.",
    ),
    "emit": ("host", "emit", "Write a program as Go that runs unchanged in the host simulator."),
    "export": ("export", "export", "Write a run, or a program, for other tools."),
    "bench": ("host", "bench", "Measure how fast replays and candidates are on this machine."),
    "model": ("models", "model", "Keep models of your own, so that every command knows them by name."),
    "list": ("runs", "list_", "List runs, shipped programs, configurations, experiments, models and GPUs."),
}


# commands that are no part of the installed product
MOVED = ("baselines", "leaderboard")


class LazyGroup(StrictGroup):
    """A group that imports a command's module when the command is named, so that `evolve --help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in MOVED:
            raise Ended(f"{args[0]}: is a command of a clone of the project: run `{research(*args)}` there", 2)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        room, _ = resource.getrlimit(resource.RLIMIT_AS)
        if room != resource.RLIM_INFINITY and room < LEAST_BYTES:
            raise Ended(f"`ulimit -v` allows {room >> 20} MiB of memory: allow at least {LEAST_BYTES >> 20}", 1)
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"evolve.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings=CONTEXT, epilog="Start with: evolve run --budget 1000")
@click.version_option(__version__, prog_name="evolve")
def cli() -> None:
    """Evolve latency models of LLM serving from measurements, and take the winner home as Go.

    A search proposes small programs (step time, queueing delay), fits their constants, scores each by replaying
    real serving runs, and keeps a Pareto archive. PROGRAM is a file, RUN:ID, or a shipped name such as `champion`.
    """


def main(group: click.Group | None = None) -> None:
    """What `evolve` does: see evolve.__main__. `group`: other commands than its own."""
    # a service manager's request to stop is handled like Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    closed = sys.stdout is None
    _open_streams()
    status = fail("standard output is closed: send it to a file", 1) if closed else run_command(sys.argv[1:], group)
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

    Otherwise a file that is opened in a closed stream's place would receive its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115
    before = sys.stdout or sys.stderr
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Output(1, "w", closefd=False)), before.encoding, before.errors,
                                  line_buffering=bool(before.line_buffering))  # fmt: skip


def run_command(args: list[str], group: click.Group | None = None) -> int:
    """Run one command line, of `evolve` or of another group, and return its exit status; errors are one line on
    stderr."""
    if COMPLETION in os.environ:  # a shell asks, and waits
        return int(importlib.import_module("evolve.cli.completion").respond())
    try:
        name = f"python -m {group.name}" if group else "evolve"
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
        return fail("something that was read is nested too deeply: flatten it", 1)
    except (KeyboardInterrupt, click.Abort):
        return fail("interrupted", 130)
    except Unread:
        return _unread()
    except OSError as e:
        return _failed(e)


def _in_plain_words(error: click.UsageError) -> str:
    """What click says of a command line, without options that only their dashes have in common with a wrong one, and
    without the names of its types."""
    if isinstance(error, click.NoSuchOption):
        name = error.option_name.lstrip("-")
        near = [o for o in error.possibilities or () if get_close_matches(name, [o.lstrip("-")])]
        error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    text = error.format_message().rstrip(".")
    if isinstance(error, click.BadParameter) and error.param and isinstance(error.param.type, click.IntRange):
        least = error.param.type.min
        whole = "is not a whole number" + f" of at least {least}" * (least is not None)
        return text.replace("is not a valid integer range", whole)
    return text.replace("is not a valid float range", "is not a number").replace("a valid integer", "a whole number")


def _failed(error: OSError) -> int:
    """The exit status after a file, or standard output, could not be read or written; one line names which."""
    if error.filename == STDOUT:
        _forget_output()
    return fail(f"{error.filename or 'a file could not be written'}: {error.strerror or error}", 1)


def _unread() -> int:
    """The exit status after a reader that has seen enough, such as `head`, which needs no message."""
    _forget_output()
    return 128 + signal.SIGPIPE


def _forget_output() -> None:
    """What is left in the buffer of standard output goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
