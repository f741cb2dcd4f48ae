"""Data frames: runs, programs, predictions and validations as pandas tables, and these as CSV, Parquet and LaTeX.

Start at `columns.py`. Every other module makes the frames of one thing, and documents their columns; `writing.py`
writes them. Imports pandas, so that only what makes a frame may import this room.
"""
