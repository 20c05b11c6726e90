"""The command: ``python -m lookahead_bench [+sweep=NAME] [key=value ...]``."""

from __future__ import annotations

import sys

from lookahead_bench.usage import USAGE


def main() -> None:
    """Say how the command is used, or run it and exit with its status."""
    if not {"--help", "-h"}.isdisjoint(sys.argv[1:]):
        print(USAGE, end="")
        return
    # Not before: Hydra alone takes a second to import, and help is to be there at once.
    from lookahead_bench import application

    application.main()


if __name__ == "__main__":
    main()
