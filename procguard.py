"""``python -m procguard``: the same as the command ``procguard``."""

import sys

from platform_launch.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "procguard")
    raise SystemExit(main())
