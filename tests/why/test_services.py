"""Services that a training asks over the network, and what runs it in a cloud."""

from __future__ import annotations

from tests.why.conftest import Explain

UNRESOLVED = (
    "urllib3.exceptions.NameResolutionError: <urllib3.connection.HTTPSConnection object at 0x76>: "
    "Failed to resolve '{}' ([Errno -3] Temporary failure in name resolution)\n"
)
FRAME = 'File "/env/lib/python3.13/site-packages/{}.py", line 205, in {}\n    raise {}\n'


def test_server_whose_name_does_not_resolve_is_named_with_the_worker_that_asked(
    explain_text: Explain,
) -> None:
    worker = (
        "ray::agent_4:Worker.__init__() (pid=81, ip=10.0.0.17, actor_id=34e0, repr=<Worker object at 0x7>)\n"
    )
    verdict = explain_text(
        FRAME.format("urllib3/connection", "_new_conn", "NameResolutionError(self.host, self, e) from e")
        + UNRESOLVED.format("api.wandb.ai")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + worker
        + "  "
        + FRAME.format("requests/adapters", "send", "ConnectionError(e, request=request)")
        + "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai', port=443)\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("cause", "server_unresolved", "10.0.0.17")
    assert verdict.details["server"] == "api.wandb.ai"


def test_hub_whose_name_does_not_resolve_is_called_offline(explain_text: Explain) -> None:
    frame = FRAME.format("urllib3/connection", "_new_conn", "NameResolutionError(self.host, self, e) from e")
    said = UNRESOLVED.format("huggingface.co")
    assert explain_text(f"Traceback (most recent call last):\n  {frame}{said}").cause == "hub_offline"


def test_warning_that_a_server_was_not_found_does_not_hide_what_ended_the_job(explain_text: Explain) -> None:
    warning = "WARNING retrying: Failed to resolve 'metrics.example' (attempt 1)\n"
    verdict = explain_text(warning + "RuntimeError: CUDA Error: out of memory at /src/allocator.cpp:62\n")
    assert verdict.cause == "cuda_out_of_memory"


def test_status_of_a_sagemaker_job_is_no_cause(explain_text: Explain) -> None:
    verdict = explain_text(
        "UnexpectedStatusException: Error for Training job sft-1: Failed. Reason: AlgorithmError: "
        'ExecuteUserScriptError:\nCommand "/opt/conda/bin/python3.11 train.py --epochs 3"\n'
    )
    assert verdict.kind == "unknown"


REPORT = (
    'AlgorithmError: ExecuteUserScriptError: ExitCode 1 ErrorMessage "ZeroDivisionError: division by zero '
    "During handling of the above exception, another exception occurred Traceback (most recent call last) "
    'File "/opt/ml/code/entry.py", line 41, in main result = train() '
    'File "/opt/ml/code/steps.py", line 7, in share return total / parts '
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 3 (pid: 19) of "
    'binary: /opt/conda/bin/python" Command "/opt/conda/bin/python entry.py"\n'
)


def test_traceback_that_sagemaker_put_on_one_line(explain_text: Explain) -> None:
    verdict = explain_text(REPORT)
    assert (verdict.cause, verdict.title) == ("python_exception", "ZeroDivisionError: division by zero")
    assert verdict.where.local_rank == 3


def test_traceback_that_vertex_put_on_one_line(explain_text: Explain) -> None:
    verdict = explain_text(
        "The replica workerpool1-2 exited with a non-zero status of 1. Termination reason: Error. Traceback "
        '(most recent call last): File "/app/run.py", line 9, in <module> main() '
        'File "/app/run.py", line 4, in main return total / parts ZeroDivisionError: division by zero\n'
    )
    assert verdict.exception is not None
    assert (verdict.exception.file, verdict.exception.line) == ("/app/run.py", 4)
    silent = explain_text("The replica workerpool1-2 exited with a non-zero status of 1.\n")
    assert (silent.kind, silent.where.pod) == ("unknown", "workerpool1-2")


def test_known_cause_in_sagemakers_report(explain_text: Explain) -> None:
    verdict = explain_text(
        REPORT.replace("ZeroDivisionError: division by zero", "OSError: [Errno 28] No space left on device")
    )
    assert verdict.cause == "disk_full"


def test_what_wandb_loses_and_refuses_is_told_by_where_it_was_raised(explain_text: Explain) -> None:
    lost = "BrokenPipeError: [Errno 32] Broken pipe"
    wandb = "/env/lib/python3.11/site-packages/wandb/sdk/lib/sock.py"
    traceback = 'Traceback (most recent call last):\n  File "fit.py", line 7, in <module>\n    log()\n'
    frame = '  File "{}", line 9, in send\n    self.sock.send(data)\n'
    assert explain_text(traceback + frame.format(wandb) + lost + "\n").cause == "wandb_network"
    assert (
        explain_text(traceback + frame.format("/env/lib/python3.11/socket.py") + lost).cause
        != "wandb_network"
    )
    key = "ValueError: API key must have 40+ characters, has 9"
    assert explain_text(traceback + frame.format(wandb) + key + "\n").cause == "wandb_login"


def test_limit_of_a_registry_is_told_from_an_image_that_is_not_there(explain_text: Explain) -> None:
    refused = (
        "FATAL:   Unable to handle docker://lab/net:3 uri: reading manifest 3 in docker.io/lab/net: {}\n"
    )
    limited = explain_text(refused.format("toomanyrequests: You have reached your pull rate limit."))
    assert (limited.cause, limited.retry) == ("image_rate_limit", "same_node")
    absent = explain_text(refused.format("manifest unknown"))
    assert (absent.cause, absent.retry) == ("image_pull", "no")
