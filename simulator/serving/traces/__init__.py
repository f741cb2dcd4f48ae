"""Traces in files: requests that were recorded, in our own columns and in the formats that are published.

Start at `read.py`. `formats.py` knows what each format calls its columns, `csv.py` reads columns of any CSV file.
"""
