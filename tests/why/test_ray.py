"""What Ray wraps around the errors of its processes."""

from __future__ import annotations

from tests.why.conftest import Explain


def test_error_while_ray_unpacks_a_task_is_not_a_cluster_that_did_not_come_up(explain_text: Explain) -> None:
    said = "Expected one of cpu, cuda, xpu device type at start of device string: npu"
    verdict = explain_text(
        "Traceback (most recent call last):\n"
        '  File "/workspace/serve.py", line 32, in <module>\n'
        "    llm = LLM()\n"
        '  File "/env/lib/python3.11/site-packages/ray/_private/worker.py", line 921, in get_objects\n'
        "    raise value\n"
        "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
        "ray::Worker.__init__() (pid=27, ip=10.0.0.2, actor_id=aa71, repr=<Worker object at 0xfff5>)\n"
        "  At least one of the input arguments for this task could not be computed:\n"
        f"ray.exceptions.RaySystemError: System error: {said}\n"
        "traceback: Traceback (most recent call last):\n"
        f"RuntimeError: {said}\n"
    )
    assert (verdict.cause, verdict.advice) == ("python_exception", "device_type_unknown")
    assert verdict.where.host == "10.0.0.2"


def test_system_error_about_the_cluster_is_one(explain_text: Explain) -> None:
    verdict = explain_text("ray.exceptions.RaySystemError: System error: Failed to connect to the raylet\n")
    assert verdict.cause == "ray_start"
