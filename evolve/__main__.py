"""The console script `evolve`. It handles interrupts even during imports."""

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
