"""Runs in a browser: the page's content as one JSON document, the page as one HTML text, and its server.

The document depends on the run's files alone, and nothing here writes into a run.
"""
