"""Research on top of the product: methods of the original exercise, rival engines, re-judged beliefs, public runs.

A package of the clone, not of the wheel: `python -m research leaderboard|baselines|rejudged|serving`.
"""

from evolve import processes

processes.settle()  # before numpy is loaded: one thread, and the same digits in this process and in workers
