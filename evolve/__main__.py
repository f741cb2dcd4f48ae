"""`python -m evolve` is `evolve`."""

from evolve.cli import main

if __name__ == "__main__":
    main()
