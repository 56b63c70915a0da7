"""Small inputs made by hand: a message's own advice, what frames do, source lines, and an honest retry."""

from __future__ import annotations

import re

import pytest

from platform_launch.why.answer.retry import retry_table
from platform_launch.why.lines.line import parse
from platform_launch.why.messages.exceptions import Raised, TracebackFrame, called, condition, operation
from platform_launch.why.messages.own_advice import own_advice, without_contradiction
from platform_launch.why.messages.signatures import catalogue
from tests.why.conftest import Explain, uncaught
from tests.why.corpus import examples

RAISE_IT = (
    "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be "
    "stored in KV cache (5120). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
    "initializing the engine."
)
LOWER_IT = (
    "ValueError: Free memory on device cuda:0 (9.94/79.15 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 71.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
    "processes."
)


def in_call(code: str, message: str, rank: int | None = None, function: str = "inner") -> str:
    """A traceback that ends in a line of Python's own library."""
    prefix = "" if rank is None else f"[rank{rank}]: "
    lines = (
        "Traceback (most recent call last):",
        '  File "/workspace/train.py", line 40, in <module>',
        "    main()",
        f'  File "/usr/lib/python3.11/shutil.py", line 7, in {function}',
        *([f"    {code}"] if code else []),
        message,
    )
    return "".join(f"{prefix}{line}\n" for line in lines)


def test_opposite_faults_share_no_signature_and_each_gives_its_own_advice(explain_text: Explain) -> None:
    too_small, not_free = explain_text(uncaught(RAISE_IT)), explain_text(uncaught(LOWER_IT))
    assert too_small.cause != not_free.cause
    assert too_small.fix.startswith("Try increasing `gpu_memory_utilization` or decreasing `max_model_len`")
    assert not_free.fix.startswith("Decrease GPU memory utilization or reduce GPU memory used by other")
    assert "lower gpu_memory_utilization" not in too_small.fix
    assert "raise gpu_memory_utilization" not in not_free.fix


def test_the_messages_own_advice_comes_first_in_chinese_too(explain_text: Explain) -> None:
    for text in (RAISE_IT, LOWER_IT):
        verdict = explain_text(uncaught(text))
        assert verdict.to_do("zh").startswith(verdict.own_advice)
        assert re.search("[一-鿿]", verdict.to_do("zh"))


def test_an_unknown_message_that_names_its_remedy_is_answered_with_it(explain_text: Explain) -> None:
    verdict = explain_text(
        uncaught("RuntimeError: 4096 shards are open. Set SHARD_LIMIT=128 or pass --fewer-shards.")
    )
    assert verdict.fix.startswith("Set SHARD_LIMIT=128 or pass --fewer-shards.")


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("x failed. For debugging consider passing CUDA_LAUNCH_BLOCKING=1", ""),
        ("no such table: runs", ""),
        ("You may have exceeded memory limits.", "You may have exceeded memory limits."),
        ("bad grid\nincrease tile_size or decrease num_stages", "increase tile_size or decrease num_stages."),
    ],
)
def test_only_sentences_that_advise_are_taken(message: str, advice: str) -> None:
    assert own_advice(message) == advice


def test_advice_that_turns_the_other_way_is_left_out() -> None:
    ours = "Lower max_model_len. Raise gpu_memory_utilization if nothing else uses the GPU."
    assert without_contradiction(ours, "Decrease gpu_memory_utilization.") == "Lower max_model_len."


@pytest.mark.parametrize(
    ("code", "message", "cause"),
    [
        (
            "os.unlink(path)",
            "FileNotFoundError: [Errno 2] No such file or directory: '/ck/last.pt'",
            "file_race",
        ),
        (
            "os.replace(a, b)",
            "FileNotFoundError: [Errno 2] No such file or directory: '/ck/a.bin'",
            "file_race",
        ),
        ("os.mkdir(path)", "FileExistsError: [Errno 17] File exists: '/ck/step-100'", "file_race"),
        (
            "open(path)",
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'",
            "file_missing",
        ),
    ],
)
def test_ranks_that_delete_rename_or_create_the_same_thing_at_once_race(
    explain_text: Explain, code: str, message: str, cause: str
) -> None:
    both = in_call(code, message, 0) + in_call(code, message, 3)
    assert explain_text(both).cause == cause


def test_a_race_is_known_by_a_function_of_a_library_whose_code_is_not_shown(explain_text: Explain) -> None:
    gone = "FileNotFoundError: [Errno 2] No such file or directory: '/ck/tmp-3'"
    both = "".join(in_call("", gone, rank, "_rmtree_safe_fd") for rank in (2, 5))
    assert explain_text(both).cause == "file_race"


def test_one_rank_that_finds_a_folder_is_told_that_it_exists(explain_text: Explain) -> None:
    one = in_call("os.mkdir(path)", "FileExistsError: [Errno 17] File exists: '/ck/step-100'", 3)
    assert explain_text(one).cause == "file_exists"


@pytest.mark.parametrize(
    ("code", "message", "rule"),
    [
        ("sock.connect(address)", "ssl.SSLError: record layer failure", "connects_in_vain"),
        ("sock.connect(address)", "acme.AcmeFault: handshake 0x17", "connects_in_vain"),
        ("self.socket.bind(address)", "OSError: [Errno 22] Invalid argument", "binds_in_vain"),
        ("os.rmdir(path)", "OSError: [Errno 39] Directory not empty: '/ck/tmp'", "deletes_or_renames"),
        ("os.rename(src, dst)", "OSError: [Errno 18] Invalid cross-device link: 'a'", "deletes_or_renames"),
    ],
)
def test_an_exception_is_explained_by_what_the_innermost_call_does(
    explain_text: Explain, code: str, message: str, rule: str
) -> None:
    verdict = explain_text(in_call(code, message))
    assert (verdict.cause, verdict.advice) == ("python_exception", rule)


def test_the_package_that_was_called_and_the_one_that_raised_are_told_apart(explain_text: Explain) -> None:
    text = uncaught("RuntimeError: 'mean' not implemented for 'Half'").replace(
        '  File "/env/lib/python3.11/site-packages/torch/nn/module.py", line 1, in _call_impl\n',
        '  File "/env/lib/python3.11/site-packages/trl/trainer.py", line 9, in train\n    self.step()\n'
        '  File "/env/lib/python3.11/site-packages/peft/model.py", line 3, in forward\n',
    )
    verdict = explain_text(text)
    assert verdict.advice == "raised_below_another_package"
    assert verdict.details["called"] == "trl"
    assert verdict.details["package"] == "peft"


def test_an_assertion_is_explained_by_its_condition(explain_text: Explain) -> None:
    assert condition("assert rows % world == 0, f'bad {rows}'") == "assert rows % world == 0"
    verdict = explain_text(
        in_call("assert batch % world_size == 0, 'bad batch'", "AssertionError: bad batch")
    )
    assert verdict.advice == "assertion_of_sizes"
    assert verdict.exception is not None
    assert verdict.exception.code == "assert batch % world_size == 0, 'bad batch'"


def test_operation_and_called_package_of_a_bare_exception_are_not_known() -> None:
    raised = Raised("OSError", "x", parse(1, b"OSError: x"))
    assert (operation(raised), called(raised)) == ("", "")
    inner = TracebackFrame("/usr/lib/python3.11/shutil.py", 3, "rmtree", "")
    assert operation(Raised("OSError", "x", parse(1, b"OSError: x"), frames=(inner,))) == "delete"


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "(Worker pid=9) ", "2026-11-21 03:04:05 | "])
def test_a_line_of_code_is_no_evidence_whatever_stands_before_it(explain_text: Explain, prefix: str) -> None:
    quoted = (
        '    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")',
        '        logger.error("NCCL WARN Call to ibv_modify_qp failed")',
        '    assert ok, "Duplicate GPU detected : rank 0 and rank 1"',
    )
    report = "".join(f"{prefix}{line}\n" for line in quoted)
    assert explain_text(report).kind == "nothing"
    verdict = explain_text(report + uncaught("KeyError: 'labels'", "[rank3]: "))
    assert (verdict.cause, verdict.title) == ("python_exception", "KeyError: 'labels'")


@pytest.mark.parametrize(
    "log",
    [
        "Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 7: Resource temporarily unavailable\n",
        uncaught("RuntimeError: can't start new thread"),
        uncaught(
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://hub: offline mode is enabled."
        ),
        uncaught("TimeoutError: gave up after 600 s"),
        uncaught("FileNotFoundError: [Errno 2] No such file or directory: '/data/typo/a.bin'"),
        uncaught("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (
            "[rank0]:[E1121 03:14:05.1 x.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600061 ms\n"
        ),
    ],
)
def test_retry_is_never_yes_without_positive_evidence(explain_text: Explain, log: str) -> None:
    assert explain_text(log).retry in (None, "no")


@pytest.mark.parametrize(
    ("log", "retry"),
    [
        (
            "slurmstepd: error: *** JOB 7 ON gn1 CANCELLED AT 2026-11-21T03:04:05 DUE TO PREEMPTION ***\n",
            "same_node",
        ),
        ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n", "another_node"),
        (
            "slurmstepd: error: *** JOB 7 ON gn1 CANCELLED AT 2026-11-21T03:04:05 DUE TO NODE FAILURE ***\n",
            "another_node",
        ),
        ("huggingface_hub.errors.HfHubHTTPError: 502 Server Error: Bad Gateway\n", "same_node"),
    ],
)
def test_retry_is_yes_with_positive_evidence_and_says_which(
    explain_text: Explain, log: str, retry: str
) -> None:
    verdict = explain_text(log)
    assert verdict.retry == retry
    assert verdict.retry_reason


def test_what_several_nodes_lack_is_not_worth_a_retry_on_another_one(explain_text: Explain) -> None:
    line = examples("signatures")["container_namespace"][0]
    assert explain_text(f"gpu-1: {line}\n").retry == "another_node"
    assert explain_text(f"gpu-1: {line}\ngpu-2: {line}\n").retry == "no"


def test_every_cause_of_the_retry_table_is_a_signature_and_listed_once() -> None:
    causes = [cause for one in retry_table() for cause in one.causes]
    assert len(causes) == len(set(causes))
    assert all(catalogue()[cause] for cause in causes)
    for one in retry_table():
        assert one.answer in ("no", "unknown", "same_node", "another_node")
        assert bool(one.evidence) == one.answer.endswith("_node")
