"""What a run is: its settings, folder, data, and the programs that commands take as arguments.

Start at `config.py` (the settings), `config_file.py` (their YAML) and `folder.py` (a run on disk). `data.py` chooses
the experiments, `program.py` reads PROGRAM arguments, `records.py` keeps what a program was fitted on, and `files.py`
writes files.
"""
