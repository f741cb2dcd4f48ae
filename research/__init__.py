"""Research on top of the product: the methods of the original exercise, rival engines, and re-judged beliefs.

A package of the clone, not of the wheel: `python -m research leaderboard|baselines|rejudged`.
"""

from evolve import processes

processes.settle()  # before numpy is loaded: one thread, and the same digits in this process and in workers
