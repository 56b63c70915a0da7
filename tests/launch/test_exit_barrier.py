"""torchrun's last complaint on a healthy node is told from everything else."""

from __future__ import annotations

from platform_launch.launch.torchrun_output import left_a_signal_traceback, left_an_exit_barrier


def test_a_store_that_was_gone_at_the_exit_barrier_is_recognised() -> None:
    assert left_an_exit_barrier(
        b"step 3\nE1122 11:49:35.933000 4635 torch/distributed/elastic/agent/server/api.py:1009] "
        b"Error waiting on exit barrier. Elapsed: 0.01 seconds\nTraceback (most recent call last):\n"
    )
    assert not left_an_exit_barrier(b"step 3\n")
    assert not left_an_exit_barrier(b"")


def test_a_traceback_with_which_torchrun_answers_a_signal_is_recognised() -> None:
    assert left_a_signal_traceback(
        b'    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)\n'
        b"torch.distributed.elastic.multiprocessing.api.SignalException: Process 8779 got signal: 15\n"
    )
    assert not left_a_signal_traceback(b"Terminated\n")
