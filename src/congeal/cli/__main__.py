"""`python -m congeal.cli`."""

import sys

from congeal.cli import main

if __name__ == "__main__":
    sys.exit(main())
