"""The entry point of every command, installed or by path; reports missing packages plainly."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

# Import name → package, for the core dependencies of pyproject.toml.
CORE = {"click": "click", "psutil": "psutil", "pynvml": "nvidia-ml-py", "rich": "rich", "yaml": "pyyaml"}


def main() -> int:
    """Run ``platform-launch``."""
    return _start("platform_launch.cli")


def dist_launch() -> int:
    """Run ``dist-launch``."""
    return _start("platform_launch.cli.dist_launch")


def procguard() -> int:
    """Run ``procguard``."""
    return _start("platform_launch.cli.procguard")


def _start(command_line: str) -> int:
    """Check the interpreter, then hand over to a command line."""
    # If started by path, Python puts this package's own folder first: its subpackages would shadow other
    # modules.
    if __spec__ is None:
        sys.path[0] = __file__.rsplit("/", 2)[0]
    # Printed at every start if the old package is installed too, as by NVIDIA's resiliency extension.
    warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
    if sys.argv[1:2] == ["_helper"]:  # started by a command that has checked the interpreter
        from platform_launch.helper import main as helper

        return helper(sys.argv[2:])
    gc.set_threshold(10_000)  # imports make no garbage, and looking for it takes a fortieth of a start
    # Until the command line is imported, Ctrl-C just ends the process; Python would print a traceback.
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _keep_signals(sys.argv[1:2] == ["run"])
    version = sys.version_info
    if version < (3, 10):  # it cannot import the console
        print(  # noqa: T201
            f"error: {sys.executable} is older than Python 3.10 [refused-installation]\n"
            "hint:  activate an environment with Python 3.10 or newer (请启用 Python 3.10 或更新版本的环境)",
            file=sys.stderr,
        )
        return 67
    if sys.argv[1:2] == ["_refuse"]:
        return _refuse(*sys.argv[2:])
    missing = [package for module, package in CORE.items() if find_spec(module) is None]
    if missing:
        return _refuse_without(missing)
    module = import_module(command_line)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    code: int = module.main()
    gc.freeze()  # shutdown would scan everything that was imported for garbage, and find none
    return code


def _keep_signals(keep: bool) -> None:
    """Block signals until a launch has its inbox, if this is the first process of a container.

    The kernel drops signals for which such a process has no handler. The shell entrypoint does the same from
    its first line on; other commands have no inbox and do not need this.
    """
    if os.getpid() == 1:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
        signal.pthread_sigmask(signal.SIG_BLOCK if keep else signal.SIG_UNBLOCK, numbers)


def _refuse(message: str, hint: str, *values: str) -> int:
    """Print an error of the shell entrypoint on standard output; ``values`` are those of the {fields}."""
    from platform_launch.console import STDOUT, Console
    from platform_launch.errors import InstallationError
    from platform_launch.text import Phrase

    fields = re.findall(r"{(\w+)}", message)
    error = InstallationError(Phrase(message, **dict(zip(fields, values, strict=True))), hint)
    Console(number=STDOUT).show_error(error.known_as(error.event))
    return 0


def _refuse_without(packages: list[str]) -> int:
    from platform_launch import console
    from platform_launch.errors import InstallationError
    from platform_launch.text import Phrase, joined

    settings = Path(__file__).resolve().parent.parent / "configs" / "platform.env"  # in a checkout
    hint = f"{quote(sys.executable)} -m pip install {' '.join(packages)}"
    if settings.is_file():
        hint = Phrase(
            "{install}; or name the environment that has them in {settings} (make demo sets one up in .venv)",
            install=hint,
            settings=settings,
        )
    error = InstallationError(
        Phrase(
            "{python} has no {packages}, which platform_launch needs",
            packages=joined(packages),
            python=sys.executable,
        ),
        hint,
    )
    console.Console().show_error(error.known_as(error.event))
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
