"""The console scripts `evolve` and `evolve-blis`. They handle interrupts even during imports."""

import sys


def main() -> None:
    """Entry point of the console script `evolve`."""
    try:
        from evolve.cli import main as run

        run()
    except KeyboardInterrupt:
        print("evolve: interrupted", file=sys.stderr)
        sys.exit(130)


def blis() -> None:
    """Entry point of the console script `evolve-blis`, which the host's scorer runs as its `blis`."""
    try:
        from evolve import processes

        processes.settle()  # before numpy
        from evolve.cli.blis import door

        door()
    except KeyboardInterrupt:
        print("evolve: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
