"""``python -m perfmodel``."""

import sys

from perfmodel.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
