"""What Ascend's NPUs and their collectives say when they fail."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, uncaught


def test_npu_that_waited_for_others_is_a_first_sign(explain_text: Explain) -> None:
    own = uncaught(
        "RuntimeError: npuSynchronizeDevice:NPUStream.cpp:435 NPU function error: aclrtSynchronizeDevice, "
        "error code is 507046",
        "[rank5]: ",
    )
    below = (
        "[rank5]: [ERROR] 2026-03-08-16:21:40 (PID:52, Device:5, RankID:5) ERR00100 PTA call acl api failed\n"
        "[rank5]: EE1002: [PID: 52] 2026-03-08-16:21:40.5 Stream synchronize timeout. rtDeviceSynchronize "
        "execute failed, reason=[stream sync timeout]\n"
    )
    verdict = explain_text(own + below)
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("consequence", "npu_timeout", 5)


def test_npu_of_a_neighbour_that_is_not_visible_explains_why_hccl_did_not_start(
    explain_text: Explain,
) -> None:
    prefix = "(VllmWorker rank=1 pid=97) ERROR 03-01 08:04:31 [multiproc_executor.py:383] "
    lines = [
        "WorkerProc hit an exception: %s",
        "Traceback (most recent call last):",
        '  File "/env/lib/python3.11/site-packages/vllm/v1/run.py", line 376, in worker_busy_loop',
        "    output = func(*args, **kwargs)",
        "RuntimeError: HCCL function error: hcclCommInitRootInfoConfig(numRanks, rank), error code is 15",
        "[ERROR] 2026-03-01-08:04:31 (PID:97, Device:1, RankID:-1) ERR02200 DIST call hccl api failed.",
        "EE9999: Inner Error!",
        "       rtGetDeviceIndexByPhyId execute failed, reason=[device id error][FUNC:FuncErrorReason]",
    ]
    verdict = explain_text("".join(f"{prefix}{line}\n" for line in lines))
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("cause", "npu_unknown", 1)


def test_npu_error_tells_what_the_operator_says_and_which_engine_it_was(explain_text: Explain) -> None:
    prefix = "(EngineCore_DP3 pid=17) ERROR 12-23 12:56:15 [core.py:868] "
    lines = [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/env/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 859, in run_engine_core',
        "    engine_core = EngineCoreProc(*args, **kwargs)",
        "RuntimeError: NPU function error: call aclnnAddmm failed, error code is 161002",
        "[ERROR] 2026-03-01-12:56:15 (PID:17, Device:0, RankID:-1) ERR00100 PTA call acl api failed.",
        "[PID: 17] 2026-03-01-12:56:15.1 AclNN_Parameter_Error(EZ1001): The k-axes are different.",
    ]
    verdict = explain_text("".join(f"{prefix}{line}\n" for line in lines))
    assert (verdict.cause, verdict.where.worker, verdict.details["code"]) == ("npu_error", "DP3", "161002")
    assert verdict.details["reason"] == "The k-axes are different."


INNER = "RuntimeError: The Inner error is reported as above. The process exits for this inner error."
FULL = (
    "[rank7]:[E615 22:00:29.320155898 compiler_depend.ts:444] NPU out of memory. NPUWorkspaceAllocator tried "
    "to allocate 1.50 GiB(NPU 7; 60.00 GiB total capacity; 1.00 GiB free).\n"
)


def test_exception_of_torch_npu_that_only_points_at_an_error_above(explain_text: Explain) -> None:
    alone = explain_text(uncaught(INNER, "[rank7]: "))
    assert (alone.kind, alone.cause) == ("consequence", "npu_inner")
    verdict = explain_text(FULL + uncaught(INNER, "[rank7]: "))
    assert (verdict.kind, verdict.cause) == ("cause", "device_out_of_memory")
    assert (verdict.where.rank, verdict.retry) == (7, "no")


def test_what_an_error_code_of_ascend_says_is_told(explain_text: Explain) -> None:
    verdict = explain_text(
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
        "[ERROR] 2026-03-01-08:04:31 (PID:97, Device:5, RankID:5) ERR02200 DIST call hccl api failed.\n"
        "EE1001: [PID: 97] 2026-03-01-08:04:31.16 The argument is invalid.\n"
    )
    assert (verdict.cause, verdict.where.rank) == ("npu_error", 5)
    assert dict(verdict.details)["reason"] == "The argument is invalid."


def test_toolkit_that_is_not_set_up_explains_why_hccl_failed(explain_text: Explain) -> None:
    verdict = explain_text(
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
        "[ERROR] 2026-03-01-10:06:30 (PID:97, Device:1, RankID:1) ERR02200 DIST call hccl api failed.\n"
        "EC0010: Failed to import Python module [ModuleNotFoundError: No module named 'tbe.common.x'.].\n"
    )
    assert (verdict.cause, verdict.where.rank) == ("npu_setup", 1)


def test_line_below_an_error_that_names_nobody_is_its_reason(explain_text: Explain) -> None:
    verdict = explain_text(
        "[ERROR] 2026-03-01-15:09:34 (PID:29, Device:0, RankID:13) ERR00100 PTA call acl api failed.\n"
        "EI0002: [PID: 29] 2026-03-01-15:09:34.7 The wait execution of the Notify register times out. "
        "Reason: The Notify register has not received the Notify record from remote rank: [6].\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("consequence", "hccl_timeout", 13)
    assert verdict.details["remote rank"] == "6"


def test_npu_and_reason_stand_below_the_exception(explain_text: Explain) -> None:
    verdict = explain_text(
        uncaught("RuntimeError: operator() NPU function error: synchronize, error code is 507035")
        + "[ERROR] 2026-04-29-18:46:11 (PID:24, Device:1, RankID:-1) ERR00100 PTA call acl api failed\n"
        "[Error]: The vector core execution is abnormal.\n"
    )
    assert verdict.cause == "npu_error"
    assert verdict.details == {
        "code": "507035",
        "device": "1",
        "reason": "The vector core execution is abnormal",
    }


def test_kernels_that_are_not_installed(explain_text: Explain) -> None:
    verdict = explain_text(
        "[E OpParamMaker.cpp:273] call aclnnCast failed, detail:EZ9999: Inner Error!\n"
        "EZ9999: 2026-05-17-01:30:26.960.959  Op Cast does not has any binary.\n"
        "        Kernel Run failed. opType: 53, Cast\n"
    )
    assert (verdict.cause, verdict.details["operation"]) == ("npu_kernel_missing", "Cast")


def test_port_of_hccl_that_another_process_holds_comes_before_links_that_wait(explain_text: Explain) -> None:
    verdict = explain_text(
        "[ERROR] HCCL(271,python3):2026-07-23-03:47:57.070.463 [hccl_socket.cc:100] [HcclSocket][Listen] "
        "socket type[1], listen on ip[192.168.20.160] and specific port[16666] fail. Please check the port\n"
        "[ERROR] HCCL(271,python3):2026-07-23-03:49:57.177.194 [hccl_socket_manager.cc:778] [273][Wait]"
        "[LinkEstablish]wait socket establish timeout, role[1] rank[12] timeout[120]\n"
    )
    assert (verdict.cause, verdict.details["port"]) == ("hccl_port", "16666")


def test_link_that_hccl_could_not_make_points_to_the_other_end(explain_text: Explain) -> None:
    verdict = explain_text(
        "[rank1]: EI0009: [PID: 22] 2026-09-24-20:59:48.119.066 Transport init error. Reason: "
        "Create Dest error! createLink para:rank[1]-localUserrank[1]-localIpAddr[172.16.0.1], "
        "dst_rank[0]-remoteUserrank[0]-remote_ip_addr[172.16.0.2]\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("consequence", "hccl_link", 1)
    assert (verdict.details["remote rank"], verdict.details["peer"]) == ("0", "172.16.0.2")


def test_fault_of_an_npu_in_a_copy_is_told_with_the_npu(explain_text: Explain) -> None:
    prefix = "[rank3]: "
    lines = [
        "[ERROR] 2026-05-02-11:20:07 (PID:71, Device:3, RankID:3) ERR00100 PTA call acl api failed",
        "[Error]: An internal error occurs in the task scheduler module on the device. ",
        "EI9999: Inner Error!",
        "        The error from device(chipId:3, dieId:0), serial number is 4. there is a sdma error, sdma",
    ]
    own = uncaught(
        "RuntimeError: copy_d2d:CopyKernel.cpp:274 NPU function error: "
        "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507001",
        prefix,
    )
    verdict = explain_text(own + "".join(f"{prefix}{line}\n" for line in lines))
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("cause", "npu_copy", 3)
    assert verdict.details["device"] == "3"
    assert "NPU 3" in verdict.fix


def test_rank_that_could_not_reach_anothers_memory_waits_for_the_faulty_npu(explain_text: Explain) -> None:
    remote = "[rank1]:[E502 11:20:06.1 compiler_depend.ts:444] SUSPECT REMOTE ERROR, error code is 507057\n"
    faulty = uncaught("RuntimeError: UCE ERROR, error code is 507053", "[rank6]: ")
    alone = explain_text(remote)
    assert (alone.kind, alone.cause, alone.where.rank) == ("consequence", "npu_remote", 1)
    verdict = explain_text(remote + faulty)
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("cause", "npu_memory", 6)


def test_npu_that_sends_no_sign_of_life_is_a_fault_of_the_node(explain_text: Explain) -> None:
    verdict = explain_text(
        uncaught("RuntimeError: ACL stream synchronize failed, error code is 507010", "[rank2]: ")
        + "[rank2]: [ERROR] 2026-05-02-11:20:07 (PID:7, Device:2, RankID:2) ERR00100 PTA call acl api\n"
    )
    assert (verdict.cause, verdict.where.rank, verdict.retry) == ("npu_lost", 2, "another_node")
    assert verdict.details["device"] == "2"


@pytest.mark.parametrize(
    ("code", "said", "kind", "cause"),
    [
        (
            "EI0001",
            "Environment variable [HCCL_IF_IP] is invalid. Reason: no address.",
            "cause",
            "hccl_settings",
        ),
        ("EI0005", "The arguments are inconsistent between ranks: tag [t]", "cause", "collective_mismatch"),
        ("EI0006", "Getting socket times out. Reason: no answer.", "consequence", "hccl_timeout"),
        ("EI0008", "The HCCL versions are inconsistent: tag [t]", "cause", "hccl_settings"),
        ("EI0011", "Failed to allocate [2048] bytes of NPU memory.", "cause", "device_out_of_memory"),
        ("EI0013", "An error CQE occurred during operator execution.", "consequence", "hccl_link"),
        ("EI0015", "Failed to collect cluster information.", "consequence", "hccl_timeout"),
        ("EI0020", "Failed to enable listening for the NPU's socket.", "cause", "hccl_port"),
        ("EJ0001", "Failed to initialize the HCCP process.", "cause", "hccl_init"),
    ],
)
@pytest.mark.parametrize("goes_on", [True, False])
def test_code_of_hccl_tells_more_than_that_no_communicator_was_made(
    explain_text: Explain, code: str, said: str, kind: str, cause: str, goes_on: bool
) -> None:
    lines = [
        "[ERROR] 2026-03-01-08:04:31 (PID:97, Device:1, RankID:9) ERR02200 DIST call hccl api failed.",
        f"{code}: [PID: 97] 2026-03-01-08:04:31.101.001 {said}",
        *["        Solution: Try again."] * goes_on,
    ]
    raised = "RuntimeError: HCCL function error: HcclCommInitRootInfoConfig(rank, config), error code is 4"
    verdict = explain_text(uncaught(raised, "[rank9]: ") + "".join(f"[rank9]: {line}\n" for line in lines))
    assert (verdict.kind, verdict.cause, verdict.where.rank) == (kind, cause, 9)


def test_gaudi_s_communicator_is_none_of_ascend_s(explain_text: Explain) -> None:
    raised = "RuntimeError: [Rank:3] FATAL ERROR :: MODULE:HCL hcclCommInitRank failed: hcclInternalError"
    assert explain_text(uncaught(raised)).cause == "gaudi_error"
