"""Tables and text for people: columns, layout, the terminal, Markdown, data frames, CSV, Parquet and LaTeX.

Start at `table.py` and `printing.py`. `terminal.py` is the only way by which text reaches standard output.
"""
