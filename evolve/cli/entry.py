"""The entry: the group of all commands, and one place where errors become a line and an exit status.

Exit status: 0 done; 1 failed, or a gate said no; 2 anything the user supplied was wrong; 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys

import click

from evolve import __version__, blas
from evolve.cli import host, ingesting, kernels, programs, runs, searching, stepping
from evolve.cli.ending import fail

blas.settle()

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
COMMANDS = [
    searching.run,
    searching.pilot,
    searching.resume,
    searching.baselines,
    runs.archive,
    runs.validate,
    programs.show,
    programs.check,
    programs.fit,
    programs.predict,
    ingesting.ingest,
    stepping.score_steps,
    kernels.kernels,
    runs.prompt,
    host.simulate,
    host.emit,
    host.bench,
    runs.list_,
]


@click.group(commands=COMMANDS, context_settings=CONTEXT, epilog="Start with: evolve run --budget 1000")
@click.version_option(__version__, prog_name="evolve")
def cli() -> None:
    """Evolve latency models of LLM serving from measurements, and take the winner home as Go.

    A search proposes small programs (step time, queueing delay), fits their constants, scores each by replaying
    real serving runs, and keeps a Pareto archive. PROGRAM is a file, RUN:ID, or a shipped name such as `champion`.
    """


def main() -> None:
    """What `evolve` does, see evolve.__main__."""
    # a service manager's wish to stop is Ctrl-C's
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = run_command(sys.argv[1:])
        sys.stdout.flush()
    except OSError as e:  # a full disk, a pipe whose reader went away
        status = fail(f"standard output: {e.strerror}", 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def run_command(args: list[str]) -> int:
    """Run one command line and return its exit status; errors are one line on stderr."""
    from simulator.errors import InputError

    try:
        return int(cli.main(args, prog_name="evolve", standalone_mode=False) or 0)
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.exceptions.NoArgsIsHelpError as e:
        print(e.format_message())
        return 0
    except click.UsageError as e:
        command = e.ctx.command_path if e.ctx else "evolve"
        return fail(f"{e.format_message().rstrip('.')}: see `{command} --help`", 2)
    except click.ClickException as e:
        return fail(e.format_message(), 2)
    except InputError as e:
        return fail(str(e), 2)
    except (KeyboardInterrupt, click.Abort):
        return fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
