"""Runs: their settings, folder and data, and the programs that commands take as arguments.

Start at `config.py` (the settings), `config_file.py` (their YAML) and `folder.py` (a run on disk). `data.py` chooses
the experiments, `program.py` reads PROGRAM arguments, and `records.py` describes how a program was fitted.
"""
