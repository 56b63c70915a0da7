"""``accelerate launch`` without torch's agent: where that would start its worker, this process becomes it.

    python tests/lab/without_agent.py WHAT accelerate launch TAKES

For one process a node, in tests that are not about the agent: it is one more process that imports torch.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

from accelerate.commands import launch


def become_worker(args: argparse.Namespace) -> None:
    """Run the training's script here, in the place that the agent would have given it."""
    host, _, port = args.rdzv_endpoint.rpartition(":")
    os.environ.update(
        RANK=str(args.node_rank), WORLD_SIZE=str(args.nnodes), MASTER_ADDR=host, MASTER_PORT=port
    )
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK=str(args.node_rank))
    sys.argv = [args.training_script, *args.training_script_args]
    sys.path[0] = str(Path(args.training_script).parent)
    runpy.run_path(args.training_script, run_name="__main__")


if __name__ == "__main__":
    with patch("torch.distributed.run.run", become_worker):
        launch.main()
