"""The parquet tables of a run. Start with `schema`: every column with its type, meaning and unit."""
