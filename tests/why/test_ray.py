"""What Ray wraps around the errors of its processes."""

from __future__ import annotations

from tests.why.conftest import Explain, progress, uncaught


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


TASK = """ray.exceptions.RayTaskError: ray::prepare() (pid=71, ip=10.0.0.5)
  File "/workspace/prepare.py", line 12, in mix
    return jnp.dot(left, right)
TypeError: the two sides differ

During handling of the above exception, another exception occurred:

ray::prepare() (pid=71, ip=10.0.0.5)
  File "/env/lib/python3.11/site-packages/fed/device.py", line 167, in prepare
    raise ray.exceptions.WorkerCrashedError()
ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.
"""


def test_exception_that_code_borrows_from_ray_does_not_hide_what_failed(explain_text: Explain) -> None:
    verdict = explain_text(TASK)
    assert (verdict.cause, verdict.where.host) == ("python_exception", "10.0.0.5")
    assert "the two sides differ" in verdict.title
    crashed = explain_text(TASK.replace("fed/device.py", "ray/_private/worker.py"))
    assert crashed.cause == "ray_actor_died"


def test_place_of_the_innermost_task_that_ray_quotes(explain_text: Explain) -> None:
    outer = "ray.exceptions.RayTaskError: ray::Runtime.run() (pid=9, ip=10.0.0.9, repr=Runtime())\n"
    could_not = "  At least one of the input arguments for this task could not be computed:\n"
    head = "Traceback (most recent call last):\n" + outer + could_not
    assert explain_text(head + TASK).where.host == "10.0.0.5"


def test_exception_that_jax_shows_whole_goes_by_its_own_name(explain_text: Explain) -> None:
    verdict = explain_text(
        "Traceback (most recent call last):\n"
        '  File "/workspace/train.py", line 12, in <module>\n'
        "    step(state)\n"
        '  File "/env/lib/python3.11/site-packages/jax/_src/lax/lax.py", line 698, in dot\n'
        '    raise TypeError(f"Incompatible shapes for dot: {left}")\n'
        "jax._src.traceback_util.UnfilteredStackTrace: "
        "TypeError: Incompatible shapes for dot: got (4, 8) and (4, 8).\n"
    )
    assert verdict.cause == "shape_mismatch"
    assert verdict.exception is not None
    assert verdict.exception.type == "TypeError"


def test_node_whose_memory_ray_watched_is_named_though_its_message_takes_two_lines(
    explain_text: Explain,
) -> None:
    said = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    where = "Memory on the node (IP: 10.0.0.7, ...) where the lease (name=Rollout.__init__, pid=3719)\n"
    verdict = explain_text(
        said + where + "was running was 63.1GB / 64.0GB (0.98), which exceeds the threshold.\n"
    )
    assert (verdict.cause, verdict.where.host) == ("ray_memory", "10.0.0.7")


LEFT = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. "
    "Worker IP address: 10.0.0.4 Worker port: 10009 Worker PID: 4711 "
    "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly by a signal. "
    "SystemExit is raised (sys.exit is called). Exit code: 1. The process receives a SIGTERM.\n"
)


def test_worker_that_was_asked_to_end_did_not_crash(explain_text: Explain) -> None:
    verdict = explain_text(LEFT)
    assert (verdict.cause, verdict.where.host) == ("ray_worker_left", "10.0.0.4")
    assert "worker-*4711.err" in verdict.fix
    crashed = explain_text(LEFT.replace("by a signal. SystemExit is raised", "with a connection error"))
    assert (crashed.cause, crashed.where.host) == ("ray_actor_died", "10.0.0.4")


def test_end_of_an_actor_that_follows_from_another_process_is_told_as_such(explain_text: Explain) -> None:
    died = (
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: Learner\n\tactor_id: 81387472\n"
    )
    for reason, cause in (
        ("The actor is dead because its owner has died. Owner Id: 0100ff", "ray_owner_died"),
        ("The actor is dead because it was killed by `ray.kill`.", "ray_actor_ended"),
        ("The actor is dead because its worker process has died.", "ray_actor_died"),
    ):
        raised = uncaught(f"{died}{reason}")
        assert explain_text(raised).cause == cause


def test_process_of_another_version_than_the_cluster_is_named(explain_text: Explain) -> None:
    verdict = explain_text(
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.11.4\n"
        "This process on node 10.0.3.7 was started with:\n    Ray: 2.40.0\n    Python: 3.11.4\n"
    )
    assert (verdict.cause, verdict.where.host) == ("ray_versions", "10.0.3.7")


def test_request_that_no_node_of_ray_has_is_no_lack_of_machines_in_a_cloud(explain_text: Explain) -> None:
    said = "(autoscaler +9s) Error: No available node types can fulfill resource request {}. Add some.\n"
    pinned = explain_text(said.format("{'node:10.9.0.4': 0.001, 'CPU': 1.0}"))
    assert (pinned.cause, pinned.where.host) == ("ray_node_absent", "10.9.0.4")
    anywhere = explain_text(said.format("{'GPU': 8.0}"))
    assert (anywhere.cause, anywhere.where.host) == ("ray_resources", None)


def test_wait_for_a_placement_group_with_the_drivers_node_does_not_tell_that_it_is_absent(
    explain_text: Explain,
) -> None:
    verdict = explain_text(
        "Waiting for creating a placement group of specs for 40 seconds. "
        "specs=[{'node:10.9.0.4': 0.001, 'GPU': 1.0}, {'GPU': 1.0}].\n"
    )
    assert verdict.cause == "ray_resources"


def test_node_of_ray_that_joined_late_is_no_failure(explain_text: Explain) -> None:
    verdict = explain_text(
        "(autoscaler +9s) Error: No available node types can fulfill resource request "
        "{'node:10.9.0.4': 0.001, 'GPU': 1.0}. Add suitable ones.\n" + progress(30)
    )
    assert verdict.cause is None


def test_exception_of_an_actor_at_its_start_is_not_a_kill_of_its_process(explain_text: Explain) -> None:
    verdict = explain_text(
        "(Fit pid=7) Exception raised in creation task: The actor died because of an error raised in its "
        "creation task, ray::Shard.__init__() (pid=912, ip=10.4.0.8, repr=<pool.Shard at 0x7f>)\n"
        '(Fit pid=7)   File "/app/pool.py", line 31, in __init__\n'
        "(Fit pid=7)     self.table = self.load(path)\n"
        '(Fit pid=7)   File "/app/pool.py", line 44, in load\n'
        "(Fit pid=7)     raise ValueError(columns)\n"
        "(Fit pid=7) ValueError: columns 7 of 9\n"
    )
    assert (verdict.cause, verdict.title) == ("python_exception", "ValueError: columns 7 of 9")
    assert verdict.where.host == "10.4.0.8"


def test_exception_of_an_actor_at_its_start_is_told_where_the_head_of_the_traceback_is_cut_off(
    explain_text: Explain,
) -> None:
    verdict = explain_text(
        "ray.exceptions.RayActorError: The actor died because of an error raised in its creation task, "
        "ray::Shard.__init__() (pid=912, ip=10.4.0.8, actor_id=5c)\n"
        '  File "/app/pool.py", line 31, in __init__\n'
        "    assert torch.cuda.is_available()\n"
        "AssertionError\n"
    )
    assert (verdict.cause, verdict.advice, verdict.where.host) == (
        "python_exception",
        "no_gpu_asserted",
        "10.4.0.8",
    )


def test_job_that_rays_dashboard_did_not_take(explain_text: Explain) -> None:
    above = uncaught("RuntimeError: Request failed with status code 500: Traceback (most recent call last):")
    below = (
        '  File "/opt/ray/job_head.py", line 71, in submit_job\n    await agent.submit(request)\n'
        "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected\n"
    )
    assert explain_text(above + below).cause == "ray_dashboard_failed"
