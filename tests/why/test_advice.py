"""What is advised and told beside it holds the values that the log states."""

from __future__ import annotations

import re

import pytest

from platform_launch.why.messages.signatures import _DETAIL_NAMES, catalogue
from tests.why.conftest import Explain, uncaught

FIELD = re.compile(r"\{(\w+)\|[^{}]+\}")
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GPU 3 has a total capacity of 79.1 GiB"
)
NEWER_OOM = OOM.format("2.00 GiB.") + (
    " of which 0.5 GiB is free. Including non-PyTorch memory, this process has 78.5 GiB memory in use. Of "
    "the allocated memory 70.0 GiB is allocated by PyTorch, and 7.1 GiB is reserved."
)
OLDER_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; "
    "9.58 GiB already allocated; 15.44 MiB free; 9.69 GiB reserved in total by PyTorch)\n"
)
WATCHDOG = (
    "[rank5]:[E1121 03:04:05.1 ProcessGroupNCCL.cpp:607] [Rank 5] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1) ran for 600061 milliseconds\n"
)
OWNER = (
    "The actor is dead because its owner has died. Owner Id: 01 Owner Ip address: 10.1.2.3 Owner worker "
    "exit type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed."
)
SAFETENSORS = "RuntimeError: unable to open file </hub/a.safetensors> in read-only mode: No such file (2)"
REQUIRED = (
    "ImportError: plotlib>=2.1,<3 is required for a normal functioning of this module, but found plotlib==1.0"
)
DYNAMO = (
    "torch._dynamo.exc.TorchRuntimeError: Dynamo failed to run FX node: got RuntimeError('shape is odd')\n"
)
ACTOR = """ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: RolloutWorker
\tactor_id: 5a02
\tpid: 4711
\tip: 10.9.8.7
"""


@pytest.mark.parametrize(
    ("text", "cause", "details"),
    [
        (
            uncaught(NEWER_OOM),
            "cuda_out_of_memory",
            {
                "asked": "2.00 GiB",
                "capacity": "79.1 GiB",
                "free": "0.5 GiB",
                "used": "78.5 GiB",
                "allocated": "70.0 GiB",
                "unallocated": "7.1 GiB",
            },
        ),
        (
            OLDER_OOM,
            "cuda_out_of_memory",
            {
                "asked": "20.00 MiB",
                "capacity": "10.76 GiB",
                "free": "15.44 MiB",
                "allocated": "9.58 GiB",
                "reserved": "9.69 GiB",
            },
        ),
        (
            WATCHDOG,
            "nccl_watchdog",
            {"waited for": "SeqNum=41, OpType=ALLREDUCE"},
        ),
        (
            "what():  [enforce fail at x/pair.cc:446] op.preamble.length <= op.nbytes. 4096 vs 1024\n",
            "collective_mismatch",
            {"sent": "4096", "expected": "1024"},
        ),
        (
            "g-1:8:9 [1] NCCL WARN Duplicate GPU detected : rank 1 and rank 4 on CUDA device 1a000\n",
            "duplicate_gpu",
            {"peer": "4", "device": "1a000"},
        ),
        (
            "Duplicate GPU detected : rank 1 and rank 4 both on CUDA device 1a000NCCL error in: a.cpp:7\n",
            "duplicate_gpu",
            {"peer": "4", "device": "1a000"},
        ),
        (
            "PBS: job killed: walltime 7210 exceeded limit 7200\n",
            "time_limit",
            {"used": "7210", "limit": "7200"},
        ),
        (
            "EH9999: 2026-01-02-03:04:05.1  wait for device failed, runtime result = 107020.\n",
            "npu_timeout",
            {},
        ),
        (DYNAMO, "torch_compile", {"reason": "RuntimeError('shape is odd')"}),
        (ACTOR, "ray_actor_died", {"actor": "RolloutWorker", "pid": "4711"}),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n",
            "driver_too_old",
            {"found": "11040"},
        ),
    ],
)
def test_values_of_the_message_are_told(
    explain_text: Explain, text: str, cause: str, details: dict[str, str]
) -> None:
    verdict = explain_text(text)
    assert (verdict.cause, verdict.details) == (cause, details)


@pytest.mark.parametrize(
    ("line", "cause", "told"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/out/step_9.pt'",
            "disk_full",
            "/out/step_9.pt",
        ),
        ("OSError: [Errno 28] No space left on device", "disk_full", None),
        ("ModuleNotFoundError: No module named 'plotters'", "missing_module", "plotters"),
        ("/usr/bin/python3: No module named plotters.run", "missing_module", "plotters.run"),
        (
            "OSError: libplot.so.7: cannot open shared object file: No such file",
            "library_missing",
            "libplot.so.7",
        ),
        (SAFETENSORS, "file_missing", "/hub/a.safetensors"),
        (REQUIRED, "library_too_old", "plotlib>=2.1,<3"),
        (OWNER, "ray_node_died", None),
    ],
)
def test_what_to_do_names_it_in_both_languages(
    explain_text: Explain, line: str, cause: str, told: str | None
) -> None:
    verdict = explain_text(f"{line}\n")
    assert verdict.cause == cause
    for language in ("en", "zh"):
        assert not re.search(r"\{\w+\|", verdict.to_do(language))
        assert told is None or told in verdict.to_do(language)


def test_report_of_an_end_is_shown_and_not_a_line_of_the_launcher_s_traceback(explain_text: Explain) -> None:
    verdict = explain_text(
        "E0625 20:25:08.343 api.py:8] failed (exitcode: 3) local_rank: 1 (pid: 298) of binary: python3\n"
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/torch/distributed/run.py", line 9, in main\n'
        "    run(args)\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    assert (verdict.kind, verdict.where.local_rank, verdict.evidence[0].line) == ("unknown", 1, 1)


def test_words_of_a_log_fill_in_nothing_further(explain_text: Explain) -> None:
    verdict = explain_text("FileNotFoundError: [Errno 2] No such file: '{path|x}'\n")
    assert all("{path|x}" in verdict.to_do(language) for language in ("en", "zh"))


def test_texts_name_only_what_the_patterns_tell() -> None:
    for signature in catalogue().signatures:
        patterns = " ".join((*signature.patterns, *signature.below))
        told = {_DETAIL_NAMES.get(name, name) for name in re.findall(r"\(\?P<(\w+)>", patterns)}
        for text in (signature.meaning, signature.fix):
            assert set(FIELD.findall(text)) <= told, signature.id


def test_endpoint_that_torchrun_printed_stands_in_the_advice_ready_to_paste(explain_text: Explain) -> None:
    verdict = explain_text(
        "  nproc_per_node   : 8\n  rdzv_endpoint    : trainer-0.lan:29411\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: "
        "The connection to the C10d store has failed. See inner exception for details.\n"
    )
    assert verdict.cause == "master_unreachable"
    assert "`nc -zv trainer-0.lan 29411`" in verdict.fix
