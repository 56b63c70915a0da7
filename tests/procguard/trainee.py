"""A training as the seed shows it: reads its data, and then is examples/ddp."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp" / "train.py"


def main() -> None:
    """Train in one process. The first of each node reads the data; without it the exit code is 3."""
    try:
        if os.environ["LOCAL_RANK"] == "0":
            Path("data/images.txt").read_text(encoding="utf-8")
    except OSError:
        traceback.print_exc()
        sys.exit(3)
    runpy.run_path(str(EXAMPLE), run_name="__main__")


if __name__ == "__main__":
    main()
