"""The command line: what each command takes, and what it prints.

`entry.py` has the group of all commands and turns errors into a line and an exit status; every other module has one or
more commands and is imported when one of them is named; `options.py` has what they take in common, `endings.py` how
they end.
"""

from evolve.cli.entry import cli, main, run_command

__all__ = ["cli", "main", "run_command"]
