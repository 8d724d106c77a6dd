"""`python -m congeal.cli`."""

import sys

from congeal.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
