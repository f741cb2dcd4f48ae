"""See a run in a browser: what a page shows of it as one JSON document, the page as one HTML text, and its server.

A document is made from the run's files alone, and nothing here writes into a run.
"""
