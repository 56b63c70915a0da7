"""The meeting process, started by its path: what lies in the working directory must not shadow a library.

See docs/decisions/0001-entrypoint-by-path.md.
"""

from __future__ import annotations

import sys

# Python has put this file's own folder there.
sys.path[0] = __file__.rsplit("/", 3)[0]

from platform_launch.rollcall.meeting import main  # noqa: E402 - needs the line above

main()
