"""The program: ``ipexctl``, and ``python -m ipexctl``."""

import sys


def main() -> None:
    """Runs the command line; Ctrl-C while its modules are still being read is no error to tell of."""
    try:
        from ipexctl.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
