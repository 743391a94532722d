"""``python -m mindspore_zb``."""

import sys

from mindspore_zb.cli import main

if __name__ == "__main__":
    sys.exit(main())
