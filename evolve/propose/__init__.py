"""Proposers: where a search's programs come from. Start at `proposer.py`; `llm/` has the language models."""
