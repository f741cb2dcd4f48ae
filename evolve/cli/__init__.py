"""The command line: what each command takes, and what it prints.

Start at `entry.py`: the group of all commands, which turns errors into a line and an exit status. Every other module
has one command or more and is imported when one of them is named; `options.py` has their common options, `endings.py`
how they end.
"""

from evolve.cli.entry import cli, main, run_command

__all__ = ["cli", "main", "run_command"]
