"""`python -m evolve` is `evolve`: the door, at which an interrupt may come before anything is loaded."""

import sys


def main() -> None:
    """Entry point of the console script."""
    try:
        from evolve.cli import main as run

        run()
    except KeyboardInterrupt:
        print("evolve: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
