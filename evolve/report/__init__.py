"""What people read: tables and sentences about runs, for the terminal and as Markdown.

Start at `table.py`: a table is built once as a value and printed for the terminal, as Markdown, or as plain text.
`run.py` builds the report of a run, `markdown.py` writes it as RUN/summary.md, and `views.py` has the archive and the
inventory. `research.py` tells the ideas of language models in RUN/RESEARCH.md, and `recommendation.py` ends it.
"""
