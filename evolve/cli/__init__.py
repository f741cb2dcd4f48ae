"""The command line.

Start at `entry.py`, the group of all commands, which turns errors into one line and an exit status. A module with
commands is imported when one of them is named. `options.py` has common options, `endings.py` the endings.
"""

from evolve.cli.entry import cli, main, run_command

__all__ = ["cli", "main", "run_command"]
