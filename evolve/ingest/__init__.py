"""Ingestion: from folders of vLLM traces and load-generator reports to experiments and tables (`evolve ingest`).

`read/` reads the files of one folder, `derive/` works out what follows from them, `write/` writes the parquet tables.
Start with `folder`, which does all of this for one folder; `batch` does it for many. `experiment`, `quality` and
`report` judge and describe a run, `entry` is what an experiments file gets of it, `output` owns the output folder,
`view` prints.
"""
