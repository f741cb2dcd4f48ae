"""The command line: what each command takes, and what it prints.

`entry.py` has the group of all commands and turns errors into a line and an exit status; `searching.py`, `runs.py`,
`programs.py`, `stepping.py`, `kernels.py` and `host.py` have the commands, `options.py` what they take in common,
`ending.py` how they end.
Everything heavy is imported inside the commands, so that `evolve --help` answers at once.
"""

from evolve.cli.entry import cli, main, run_command

__all__ = ["cli", "main", "run_command"]
