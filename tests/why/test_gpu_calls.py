"""What CUDA's own errors say: of the node, of the call, of the process that makes it."""

from __future__ import annotations

from tests.why.conftest import Explain, uncaught

WORKER = """RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/workspace/data.py", line 98, in __getitem__
    x = torch.from_numpy(x).pin_memory()
RuntimeError: CUDA error: initialization error
"""


def test_gpu_that_a_loaders_process_cannot_open_is_a_matter_of_the_fork(explain_text: Explain) -> None:
    verdict = explain_text(WORKER)
    assert (verdict.cause, verdict.retry) == ("cuda_fork", "no")
    alone = explain_text(uncaught("RuntimeError: CUDA error: initialization error"))
    assert (alone.cause, alone.retry) == ("cuda_error", "another_node")


def test_call_that_cuda_refuses_is_no_fault_of_the_node(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("RuntimeError: CUDA error: invalid argument", "[rank3]: "))
    assert (verdict.cause, verdict.retry, verdict.where.rank) == ("cuda_call_refused", "no", 3)
    assert verdict.details["reason"] == "invalid argument"
