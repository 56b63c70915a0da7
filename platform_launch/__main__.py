"""Run as ``python -m platform_launch`` or by path; says plainly what this interpreter lacks."""

from __future__ import annotations

import sys
from importlib.util import find_spec

# Import name → package, for the core dependencies of pyproject.toml.
CORE = {"click": "click", "psutil": "psutil", "pynvml": "nvidia-ml-py", "rich": "rich", "yaml": "pyyaml"}


def main() -> int:
    """Check the interpreter, then hand over to the command line."""
    # Started by path, Python puts this package's own folder first: its rooms would shadow other modules.
    if __spec__ is None:
        sys.path[0] = __file__.rsplit("/", 2)[0]
    version = sys.version_info
    if version < (3, 10):
        return _refuse(
            f"Python {version[0]}.{version[1]}", "activate an environment with Python 3.10 or newer"
        )
    missing = [package for module, package in CORE.items() if find_spec(module) is None]
    if missing:
        return _refuse(
            f"without {', '.join(missing)}", f"{sys.executable} -m pip install {' '.join(missing)}"
        )
    from platform_launch.cli import main as command_line

    return command_line()


def _refuse(what: str, todo: str) -> int:
    print(f"error: {sys.executable} is {what}: platform_launch cannot start", file=sys.stderr)  # noqa: T201
    print(f"hint:  {todo}", file=sys.stderr)  # noqa: T201
    return 67  # errors.InstallationError, which may not be importable here


if __name__ == "__main__":
    sys.exit(main())
