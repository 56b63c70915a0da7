"""``python -m procguard``: the command ``procguard``, and its server if ``--config`` comes first."""

import sys

from platform_launch.__main__ import main

if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].partition("=")[0] == "--config":
        sys.argv.insert(1, "server")
    sys.argv.insert(1, "procguard")
    raise SystemExit(main())
