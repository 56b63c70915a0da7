"""Train TAEHV: ``accelerate launch --config_file YAML examples/taehv/train.py --config FILE [--key VALUE]``.

Exit codes: 0 after the last step; 66 if the config, data or a checkpoint cannot be used, the disk is
full or training has diverged; 128 + n after signal n (143 for SIGTERM), once a checkpoint is written: a
scheduler must not take that for a finished job. accelerate's launcher turns all of them into 1; the file that
PLATFORM_LAUNCH_EXIT_FILE names gets the code, too.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from taehv_trainer.ending import write_exit_file
from taehv_trainer.errors import TrainingError
from taehv_trainer.flags import parse_arguments

_CANNOT_WRITE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM),
    *(errno.EROFS, errno.ENOTDIR, errno.EEXIST),
)

if TYPE_CHECKING:
    from taehv_trainer.config import TrainConfig
    from taehv_trainer.training import Training


def main() -> int:
    """Run one process of the training and return its exit code."""
    rank, local_rank = os.environ.get("RANK", "0"), os.environ.get("LOCAL_RANK", "0")
    try:
        config = parse_arguments(sys.argv[1:])
    except TrainingError as error:
        if local_rank == "0":  # the processes of a node read the same config: report it once
            _print(error)
        write_exit_file(error.exit_code, error.message)
        return error.exit_code
    if not config.compile:
        # DeepSpeed asks for functions to be compiled that are never called, and every process would import
        # torch's compiler for them, for seconds of its start.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # Heavy imports wait until the config has proved usable.
    from taehv_trainer.training import Training

    try:
        signal_number = _train(Training, config)
    except TrainingError as error:
        if rank == "0" or not error.on_all_processes:
            _print(error, f"rank {rank}: " if rank != "0" else "")
        write_exit_file(error.exit_code, error.message)
        return error.exit_code
    if not signal_number:
        return 0
    exit_code = 128 + signal_number
    write_exit_file(exit_code, f"stopped by {signal.Signals(signal_number).name}, after a checkpoint")
    return exit_code


def _train(training: type[Training], config: TrainConfig) -> int:
    try:
        return training(config).run()
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        folder = Path(config.output_dir).absolute()
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.is_dir())).free
        raise TrainingError(
            f"{error.filename or folder} cannot be written: {error.strerror} ({free} bytes free)",
            "free some space or check --output-dir; the next start goes on from the last checkpoint",
        ) from error


def _print(error: TrainingError, who: str = "") -> None:
    hint = f"{who}hint: {error.hint}\n" if error.hint else ""
    sys.stderr.write(f"{who}error: {error.message}\n{hint}")


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is saved and closed. Threads inside torch may still abort the process (SIGABRT) while the
    # interpreter is taken down, which would turn a finished job into a failed one: so it is not taken down.
    os._exit(exit_code)
