"""Python frames → what a process is busy with, if that has a name: a checkpoint, a compilation, data.

A table, searched from the innermost frame outwards: the first match wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from platform_launch.observe.stacks import PythonFrame
from platform_launch.sentences import Sentence, sentence


@dataclass(frozen=True)
class Activity:
    """What a frame does. ``lengthy``: it may work for long by itself instead of waiting for others.

    ``id`` is for programs; ``doing`` is the code of a sentence that continues "rank 0 …".
    """

    id: str
    doing: str
    file: str
    function: str = ".*"
    lengthy: bool = False

    @property
    def sentence(self) -> Sentence:
        """Return what it does."""
        return sentence(self.doing)

    def covers(self, frame: PythonFrame) -> bool:
        """Return whether a frame does this."""
        return bool(re.search(self.file, frame.file) and re.fullmatch(self.function, frame.function))


ACTIVITIES = (
    # First, because it is called from whatever the rank was doing.
    Activity("debugger", "is-debugged", r"/_platform_launch_look\.py$"),
    Activity("compile", "compiles-model", r"/torch/(_dynamo|_inductor|_functorch)/", lengthy=True),
    Activity("compile", "compiles-kernels", r"/triton/(compiler|backends|runtime)/", lengthy=True),
    Activity("lock", "waits-build-lock", r"/torch/utils/file_baton\.py$"),
    Activity("lock", "waits-file-lock", r"/filelock/"),
    Activity("compile", "compiles-extension", r"/torch/utils/cpp_extension\.py$", lengthy=True),
    Activity(
        "compile",
        "compiles-model",
        r"/jax/_src/(compiler|interpreters/(mlir|pxla|partial_eval))\.py$",
        lengthy=True,
    ),
    Activity("checkpoint", "torch-save", r"/torch/serialization\.py$", "(_legacy_)?_?save", lengthy=True),
    Activity("checkpoint", "torch-load", r"/torch/serialization\.py$", "(_legacy_)?_?load", lengthy=True),
    Activity("checkpoint", "checkpoint", r"/torch/distributed/checkpoint/", lengthy=True),
    Activity("checkpoint", "checkpoint", r"/(orbax|safetensors)/", lengthy=True),
    Activity("device", "waits-gpu", r"/torch/cuda/(streams|__init__|graphs)\.py$"),
    Activity("data", "waits-loader", r"/torch/utils/data/dataloader\.py$"),
    Activity("collective", "waits-torch", r"/torch/distributed/distributed_c10d\.py$"),
    Activity(
        "collective",
        "waits-jax",
        r"/jax/(experimental/multihost_utils|_src/(array|distributed|api|pjit))\.py$",
    ),
    Activity("store", "waits-store", r"/torch/distributed/(rendezvous|elastic/.*)\.py$"),
    Activity(
        "request",
        "http-request",
        r"/(huggingface_hub|requests|urllib3|boto3|fsspec|gcsfs|s3fs)/",
        lengthy=True,
    ),
    Activity("request", "http-request", r"/(http/client|urllib/request)\.py$", lengthy=True),
    Activity("import", "imports", r"^<frozen importlib", lengthy=True),
    Activity(
        "child",
        "waits-child",
        r"/subprocess\.py$",
        "(wait|_wait|communicate|_communicate)",
    ),
)


def activity_of(frames: Sequence[PythonFrame]) -> Activity | None:
    """Return the activity of the innermost frame that has one; None if no frame has."""
    for frame in frames:
        for activity in ACTIVITIES:
            if activity.covers(frame):
                return activity
    return None
