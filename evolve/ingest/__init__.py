"""Ingestion: from folders of vLLM traces and load-generator reports to experiments and tables (`evolve ingest`).

`read/` reads the files of one folder as values, from `sources`, which finds them; faults become findings or counts.
`derive/` computes the rest: `journeys` (the life of requests), `batches` (the requests of steps), `cached` (cached
tokens of prompts), `matching` (client rows and server requests), `requests` and `steps`.
`write/` writes the parquet tables; `schema` has their columns.

Start with `folder`, which does all of this for one folder; `batch` does it for many. `experiment`, `quality` and
`account` judge and describe a run, `output` owns the output folder, `view` prints. `trace` and `trace_source` are for
single traces.
"""
