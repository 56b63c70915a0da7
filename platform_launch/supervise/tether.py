"""Makes a program end with its supervisor, then becomes that program. Runs as a script; never imported.

    python -I -S tether.py SUPERVISOR_PID DIRECTORY PROGRAM [ARGUMENT...]

It runs between spawn and exec because Python code must not run in a process that was forked from one with
threads. Its process id is the program's.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set what survives exec: the death signal, the directory and default signal dispositions."""
    supervisor, directory, *argv = sys.argv[1:]
    # Python ignores these two; a program expects the defaults, as a shell would pass them on.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # SIGTERM, not SIGKILL: torchrun's workers have their own sessions, and only torchrun can stop them.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(supervisor):
        sys.exit("[ERROR] the supervisor died before the training started")
    place = directory or argv[0]
    try:
        if directory:
            os.chdir(directory)
        place = argv[0]
        os.execvp(argv[0], argv)  # noqa: S606 - what this file is for
    except OSError as error:
        sys.stderr.write(f"[ERROR] cannot start the training: {place}: {error.strerror}\n")
        # As in a shell: 127 not found, 126 not executable.
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
