"""From a folder of vLLM traces and reports to experiments and tables (see `evolve ingest --help`)."""
