"""The summary of a run: its report as values and JSON, in the terminal, as RUN/summary.md and as RUN/RESEARCH.md.

Start at `result.py`. `run.py` prints a report, `markdown.py` writes summary.md, `research.py` writes RESEARCH.md.
"""
