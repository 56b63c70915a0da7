"""One traceback of two ranks behind whatever schedulers, containers and loggers put before lines."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.why.conftest import Explain, uncaught

Prefix = Callable[[int, int], str]


def clock(line: int) -> str:
    return f"03:04:{line % 60:02d}"


# The prefix of a rank's line, and the place that it tells of rank 1. Lines are numbered over all ranks.
STYLES: dict[str, tuple[Prefix, str]] = {
    "nothing": (lambda r, n: "", ""),
    "torch": (lambda r, n: f"[rank{r}]: ", "rank 1"),
    "torchrun --tee": (lambda r, n: f"[default{r}]:", "local rank 1"),
    "this launcher": (lambda r, n: f"[node {r}] [rank{r}]: ", "node 1, rank 1"),
    "kubectl --prefix": (lambda r, n: f"[pod/train-{r}-x7k2p/main] ", "pod train-1-x7k2p"),
    "stern": (lambda r, n: f"train-{r}-x7k2p main ", "pod train-1-x7k2p"),
    "stern --timestamps": (
        lambda r, n: f"train-{r}-x7k2p main 2026-11-21T{clock(n)}.123456789Z ",
        "pod train-1-x7k2p",
    ),
    "CRI": (lambda r, n: f"2026-11-21T{clock(n)}.123456789Z stderr F ", ""),
    "journald": (lambda r, n: f"Nov 21 {clock(n)} gpu-0{r} python3[42{r}7]: ", "host gpu-01"),
    "journald ISO": (lambda r, n: f"2026-11-21T{clock(n)}+0000 gpu-0{r} train[42{r}7]: ", "host gpu-01"),
    "syslog": (lambda r, n: f"<11>Nov 21 {clock(n)} gpu-0{r} trainer: ", "host gpu-01"),
    "a comment": (lambda r, n: f"# [rank{r}]: ", "rank 1"),
    "kernel": (lambda r, n: f"[ 1234.{n:06d}] ", ""),
    "docker compose": (lambda r, n: f"worker-{r}  | ", "host worker-1"),
    "loguru": (lambda r, n: f"2026-11-21 {clock(n)}.123 | ERROR    | __main__:main:88 - ", ""),
    "SageMaker": (lambda r, n: f"[1,mpirank:{r},algo-{r + 1}]<stderr>:", "host algo-2, rank 1"),
    "mpirun --tag-output": (lambda r, n: f"[1,{r}]<stderr>:", "rank 1"),
    "prterun": (lambda r, n: f"[prterun-gpu-0-4242@1,{r}]<stderr>: ", "rank 1"),
    "mpirun --timestamp-output": (lambda r, n: f"Sat Nov 21 {clock(n)} 2026[1,{r}]<stderr>:", "rank 1"),
    "Intel MPI": (lambda r, n: f"[{r}] ", "rank 1"),
    "horovodrun": (lambda r, n: f"[{r}]<stderr>:", "rank 1"),
    "pdsh": (lambda r, n: f"gpu-0{r}: ", "host gpu-01"),
    "pdsh, names without numbers": (lambda r, n: ("alpha: ", "beta: ", "gamma: ")[r], "host beta"),
    "pdsh, addresses": (lambda r, n: f"10.0.0.{r}: ", "host 10.0.0.1"),
    "DeepSpeed over pdsh": (lambda r, n: f"worker-{r}: [rank{r}]: ", "host worker-1, rank 1"),
    "Ray": (lambda r, n: f"(train_fn pid=42{r}7, ip=10.0.0.{r}) ", "host 10.0.0.1"),
    "Ray, coloured": (lambda r, n: f"\x1b[36m(train pid=42{r}7, ip=10.0.0.{r})\x1b[0m ", "host 10.0.0.1"),
    "Ray, actor of actors": (lambda r, n: f"(Worker(actor-{r}) pid=4{r}, ip=10.0.0.{r}) ", "host 10.0.0.1"),
    "vLLM": (
        lambda r, n: f"(VllmWorker rank={r} pid=42{r}) ERROR 11-21 {clock(n)} [executor.py:522] ",
        "rank 1",
    ),
    "vLLM, an older one": (
        lambda r, n: f"(WorkerWrapper rank={r} pid=42{r}) ERROR 11-21 {clock(n)} worker_base.py:522] ",
        "rank 1",
    ),
    "vLLM, parallel workers": (
        lambda r, n: f"(EngineCore pid=9) (Worker_TP{r} pid=42{r}) ERROR 11-21 {clock(n)} [executor.py:559] ",
        "worker TP1",
    ),
    "vLLM, numbered workers": (lambda r, n: f"(worker_{r}) ", "worker 1"),
    "SGLang": (lambda r, n: f"[2026-11-21 {clock(n)} DP0 TP{r}] ", "worker DP0 TP1"),
    "gcloud, workers of a TPU pod": (lambda r, n: f"worker {r}: ", "worker 1"),
    "Lightning": (lambda r, n: f"[rank: {r}] ", "rank 1"),
    "rank in round brackets": (lambda r, n: f"(RANK {r}) ", "rank 1"),
    "NeMo RL": (lambda r, n: f"(PolicyWorker[rank={r}] pid=42{r}, ip=10.0.0.9) ", "host 10.0.0.9, rank 1"),
    "local rank in brackets": (lambda r, n: f"[Local Rank {r}] ", "local rank 1"),
    "global and local rank": (lambda r, n: f"[Rank {r + 8} | Local Rank {r}] ", "rank 9"),
    "node and local rank": (lambda r, n: f"[node_rank={r} local_rank=0] ", "node 1, local rank 0"),
    "rank of a part": (lambda r, n: f"[dp_rank=0 tp_rank={r}] ", ""),
    "host in brackets": (lambda r, n: f"[worker-{r}] ", "host worker-1"),
    "SkyPilot": (
        lambda r, n: f"(worker{r}, rank={r}, pid=42{r}7, ip=10.0.0.{r}) ",
        "node 1, host 10.0.0.1",
    ),
    "SkyPilot, older": (lambda r, n: f"(node-{r} pid=42{r}7, ip=10.0.0.{r}) ", "node 1, host 10.0.0.1"),
    "rank in brackets and a colon": (lambda r, n: f"[{r}]: ", "rank 1"),
    "SkyPilot, one node": (lambda r, n: f"(head, rank={r}, pid=42{r}7) ", "node 1"),
    "srun --label": (lambda r, n: f" {r}: ", "task 1"),
    "srun --label over pdsh": (lambda r, n: f"{r}: gpu-0{r}: ", "host gpu-01, task 1"),
    "Spark": (lambda r, n: f"26/11/21 {clock(n)} ERROR Executor task {r}.0 in stage 3.0 (TID 1{r}): ", ""),
    "log4j": (lambda r, n: f"2026-11-21 {clock(n)},123 ERROR [task-{r}] org.app.Main (Main.java:12) - ", ""),
    "Python's logging": (lambda r, n: f"2026-11-21 {clock(n)},123 - trainer{r} - ERROR - ", ""),
    "Python's logging with a rank": (lambda r, n: f"[2026-11-21 {clock(n)},123][rank={r}][ERROR] ", "rank 1"),
    "structlog": (lambda r, n: f"2026-11-21 {clock(n)} [error    ] ", ""),
    "a word and a tab": (lambda r, n: f"rank{r}\t", "rank 1"),
    "seconds and a line number": (lambda r, n: f"{704.7 + n:.1f}s\t{1290 + n}\t", ""),
    "torchx": (lambda r, n: f"trainer/{r} [{r}]:", ""),
    "rank in words": (lambda r, n: f"rank {r}: ", "rank 1"),
    "rank in brackets": (lambda r, n: f"[Rank {r}] ", "rank 1"),
    "GPU in brackets": (lambda r, n: f"[GPU{r}] ", ""),
    "host and rank in brackets": (lambda r, n: f"[gpu-0{r}:{r}] ", ""),
    "CloudWatch": (lambda r, n: f"2026-11-21T{clock(n)}.123Z\t", ""),
    "klog": (lambda r, n: f"E1121 {clock(n)}.123456   42{r}7 main.go:12] ", ""),
    "ts": (lambda r, n: f"Nov 21 {clock(n)} ", ""),
    "ts -s": (lambda r, n: f"00:{clock(n)[3:]} ", ""),
    "Determined": (
        lambda r, n: f"[2026-11-21T{clock(n)}.123456Z] 1a2b3c4d || [rank={r}] ",
        "rank 1",
    ),
    "json-file": (lambda r, n: "", ""),
}
# Behind these all ranks look alike, so that only one of them can speak at a time.
NAMELESS = {
    "nothing",
    "CRI",
    "kernel",
    "loguru",
    "structlog",
    "seconds and a line number",
    "CloudWatch",
    "ts",
}
NAMELESS |= {"ts -s", "json-file"}


def as_json(line: str, number: int) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": f"2026-11-21T{clock(number)}.1Z"})


@pytest.mark.parametrize("style", STYLES)
def test_traceback_outranks_the_watchdogs_behind_any_prefix(explain_text: Explain, style: str) -> None:
    prefix, place = STYLES[style]
    of_one, of_two = (uncaught(f"ValueError: bad clip {r}", line=77).splitlines() for r in (1, 2))
    spoken = [(step % 3, f"step {step} loss 0.1") for step in range(9)]
    for one, two in zip(of_one, of_two, strict=True):
        spoken += [(1, one)] if style in NAMELESS else [(1, one), (2, two)]
    spoken += [
        (
            rank,
            f"[rank{rank}]:[E1121 03:14:05.1 x.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout",  # noqa: E501
        )
        for rank in (0, 2)
    ]
    lines = [prefix(rank, number) + text for number, (rank, text) in enumerate(spoken)]
    if style == "json-file":
        lines = [as_json(line, number) for number, line in enumerate(lines)]
    verdict = explain_text("\n".join(lines) + "\n")
    assert (verdict.title, str(verdict.where)) == ("ValueError: bad clip 1", place)
    assert verdict.exception is not None
    assert verdict.exception.line == 77


def test_prefix_that_only_the_first_line_of_a_traceback_has_is_no_obstacle(explain_text: Explain) -> None:
    first, *rest = uncaught("ValueError: bad", line=77).splitlines(keepends=True)
    verdict = explain_text(f"2026-11-21 03:04:05,123 [rank3] ERROR {first}" + "".join(rest))
    assert verdict.exception is not None
    assert (verdict.title, verdict.exception.line) == ("ValueError: bad", 77)


def test_traceback_in_one_json_message_is_read(explain_text: Explain) -> None:
    record = {
        "severity": "ERROR",
        "jsonPayload": {"Body": "failed\n" + uncaught("ValueError: bad", line=77)},
    }
    verdict = explain_text(json.dumps(record) + "\n")
    assert verdict.exception is not None
    assert (verdict.title, verdict.exception.line) == ("ValueError: bad", 77)


def test_traceback_quoted_on_one_line_is_read(explain_text: Explain) -> None:
    quoted = uncaught("ValueError: bad", line=77).replace("\n", "\\n")
    verdict = explain_text(f"worker said: '{quoted}'\n")
    assert verdict.exception is not None
    assert (verdict.title.rstrip("'"), verdict.exception.line) == ("ValueError: bad", 77)


@pytest.mark.parametrize(
    "line", ['{"log": ', "{}", '{"log": 3}', "{" * 500 + "}" * 500, '{"a": "RuntimeError: x"}']
)
def test_line_that_only_looks_like_json_is_a_line(explain_text: Explain, line: str) -> None:
    assert explain_text(f"{line}\nDuplicate GPU detected\n").cause == "duplicate_gpu"


def test_module_that_a_logger_names_between_bars_is_no_host(explain_text: Explain) -> None:
    line = "2026-05-10 05:38:33 | INFO | {} | Waiting in store based barrier to initialize process group for "
    line += "rank: {}, key: store_based_barrier_key:1 (world_size=2, worker_count=3, timeout=0:30:00)\n"
    for module in ("torch.distributed.distributed_c10d", "trainer.run_loop", "deepspeed.comm"):
        verdict = explain_text(line.format(module, 0) + line.format(module, 2))
        assert (verdict.cause, verdict.where.host) == ("barrier_leftover", None)


def test_number_of_a_test_of_cmake_is_no_task(explain_text: Explain) -> None:
    output = "{0}: Attempting to use an MPI routine before initializing MPICH\n" * 2
    ended = "{0}: srun: error: nid0042: tasks 0-1: Exited with exit code 1\n"
    verdict = explain_text("12: Test timeout computed to be: 1500\n" + (output + ended).format(12))
    assert (verdict.cause, str(verdict.where)) == ("mpi_order", "host nid0042")
    assert explain_text(output.format(1) + ended.format(1)).where.task == 1
