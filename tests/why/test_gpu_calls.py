"""What CUDA's own errors say: of the node, of the call, of the process that makes it."""

from __future__ import annotations

import pytest

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
    assert (alone.cause, alone.retry) == ("cuda_start", None)


def test_call_that_cuda_refuses_is_no_fault_of_the_node(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("RuntimeError: CUDA error: invalid argument", "[rank3]: "))
    assert (verdict.cause, verdict.retry, verdict.where.rank) == ("cuda_call_refused", "no", 3)
    assert verdict.details["reason"] == "invalid argument"


@pytest.mark.parametrize(
    ("error", "cause", "retry"),
    [
        ("CUDA driver error: invalid argument", "cuda_call_refused", "no"),
        ("CUDA error: operation failed due to a previous error during capture", "cuda_call_refused", "no"),
        ("CUDA error: invalid device function", "no_kernel_image", "no"),
        (
            "CUDA error: API call is not supported in the installed CUDA driver",
            "driver_too_old",
            None,
        ),
        ("CUDA error: exclusive-thread device already in use by a different thread", "gpu_busy", None),
        (
            "CUDA error: operation not supported on global/shared address space",
            "illegal_memory_access",
            None,
        ),
        ("CUDA driver error: out of memory", "cuda_out_of_memory", "no"),
        ("HIP error: out of memory", "device_out_of_memory", "no"),
        ("local_rank 4 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1", "invalid_device", "no"),
        (
            'device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "/src/CUDAContext.cpp":52. device=1',
            "invalid_device",
            "no",
        ),
        (
            "Unexpected error from cudaGetDeviceCount(). Error 805: MPS client failed to connect",
            "mps",
            None,
        ),
        ("CUDA error: the MPS client has been terminated by the server", "mps", None),
    ],
)
def test_what_an_error_of_cuda_is_about(explain_text: Explain, error: str, cause: str, retry: str) -> None:
    verdict = explain_text(uncaught(f"RuntimeError: {error}", "[rank3]: "))
    assert (verdict.cause, verdict.retry, verdict.where.rank) == (cause, retry, 3)


def test_gpu_that_is_used_while_its_process_ends_is_what_followed(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("RuntimeError: CUDA error: driver shutting down", "[rank3]: "))
    assert (verdict.kind, verdict.cause) == ("consequence", "cuda_at_exit")


def test_memory_that_the_kernel_does_not_let_another_process_have(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("RuntimeError: pidfd_getfd: Operation not permitted", "[rank3]: "))
    assert (verdict.cause, verdict.where.rank) == ("gpu_ipc", 3)


LAUNCH = "torch.AcceleratorError: CUDA error: unspecified launch failure"


def test_launch_failure_does_not_tell_what_the_kernel_did(explain_text: Explain) -> None:
    verdict = explain_text(uncaught(LAUNCH, "[rank2]: "))
    assert (verdict.cause, verdict.where.rank, verdict.retry) == ("launch_failure", 2, None)


def test_experts_that_waited_in_vain_stop_their_kernels(explain_text: Explain) -> None:
    waited = "Warning: {} timeout for combine receive, rank 2, local_expert_idx 5, src_rank 9\n"
    for library in ("DeepEP", "NCCL EP"):
        verdict = explain_text(waited.format(library) + uncaught(LAUNCH, "[rank2]: "))
        assert (verdict.kind, verdict.cause, verdict.where.rank) == ("consequence", "experts_exchange", 2)
        assert verdict.details["src_rank"] == "9"


def test_experts_that_waited_for_a_rank_that_failed(explain_text: Explain) -> None:
    verdict = explain_text(
        uncaught("RuntimeError: CUDA error: uncorrectable ECC error encountered", "[rank9]: ")
        + "DeepEP dispatch RDMA sender timeout, channel: 2, RDMA: 1, nvl: 4, dst RDMA lane: 0, tail: 9\n"
        + uncaught("RuntimeError: DeepEP error: CPU recv timeout", "[rank2]: ")
    )
    assert (verdict.cause, verdict.where.rank) == ("ecc", 9)


def test_place_in_compiled_code_that_torch_adds_to_its_message(explain_text: Explain) -> None:
    verdict = explain_text(
        uncaught("torch._dynamo.exc.InternalTorchDynamoError: it does not go on", "[rank1]: ")
        + "\n[rank1]: from user code:\n"
        '[rank1]:    File "/workspace/model.py", line 40, in forward\n'
        "[rank1]:     x = self.mix(x)\n"
        '[rank1]:   File "/env/lib/python3.11/site-packages/einops/einops.py", line 3, in repeat\n'
        "[rank1]:     return tensor\n"
        "\n[rank1]: Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace\n"
    )
    assert (verdict.cause, verdict.where.rank) == ("torch_compile", 1)
    assert verdict.exception is not None
    assert verdict.exception.file == "/workspace/model.py"


@pytest.mark.parametrize(
    "frame",
    ["    /env/lib/python3.9/site-packages/{}:{} {}  *\n",
     '    File "/env/lib/python3.9/site-packages/{}", line {}, in {}  *\n'],
)  # fmt: skip
def test_message_that_tensorflow_puts_below_places_in_the_code(explain_text: Explain, frame: str) -> None:
    verdict = explain_text(
        uncaught("ValueError: in user code:")
        + "\n"
        + frame.format("keras/engine/training.py", 805, "train_function")
        + "        return step_function(self, iterator)\n"
        + frame.format("keras/engine/input_spec.py", 219, "assert_input_compatibility")
        + "        raise ValueError('Input ' + str(input_index) + ' of layer ' +\n"
        "\n    ValueError: Input 0 of layer pool_2 is incompatible with the layer: expected ndim=4\n"
    )
    assert verdict.title.startswith("ValueError: Input 0 of layer pool_2 is incompatible")
    assert verdict.advice == "layer_input"
    assert verdict.exception is not None
    assert verdict.exception.package == "keras"


REFUSED = (
    "[TP0] Failed to CUDA calloc 268435456 bytes\n"
    "[TP0] Failed to update: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\n"
    "[TP0] ncclUnhandledCudaError: Call to CUDA function failed.\n"
)


def test_memory_that_nccl_did_not_get_is_likely_what_failed(explain_text: Explain) -> None:
    verdict = explain_text(REFUSED)
    assert (verdict.kind, verdict.cause, verdict.where.worker) == ("suspect", "nccl_gpu_memory", "TP0")
    others = "[Rank 3] Some NCCL operations have failed or timed out.\n"
    assert explain_text(REFUSED.replace("[TP0] ", "") + others).where.rank is None
    full = "gpu-1:7:9 [0] include/alloc.h:250 NCCL WARN Cuda failure 2 'out of memory'\n"
    assert explain_text(full + REFUSED).kind == "cause"


def test_call_of_nccl_that_the_driver_refused_is_no_fault_of_the_node(explain_text: Explain) -> None:
    verdict = explain_text(REFUSED + "Last error:\nCuda failure 'invalid argument'\n")
    assert (verdict.cause, verdict.retry) == ("nccl_call_refused", "no")
    assert "NCCL_P2P_DISABLE" in verdict.fix


def test_optimizer_that_was_made_by_half_is_a_follow_up(explain_text: Explain) -> None:
    half = "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    assert explain_text(half).kind == "consequence"
    missing = "MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)\n"
    assert explain_text(half + missing).cause == "cuda_toolkit_missing"


def test_a_bus_error_alone_does_not_tell_whether_another_node_helps(explain_text: Explain) -> None:
    verdict = explain_text("[gpu-3:189:0:189] Caught signal 7 (Bus error: nonexistent physical address)\n")
    assert (verdict.cause, verdict.retry) == ("bus_error", None)


def test_number_of_an_amd_node_is_not_that_of_a_gpu(explain_text: Explain) -> None:
    hung = (
        "HW Exception by GPU {} (Agent handle: 0x51) reason :GPU Hang\nsrun: error: gn07: task 3: Aborted\n"
    )
    by_agent, by_number = explain_text(hung.format("node-4")), explain_text(hung.format("2"))
    assert (by_agent.cause, by_agent.where.host, by_agent.where.gpu) == ("gpu_hung", "gn07", None)
    assert by_number.where.gpu == "2"
    fault = explain_text("Memory access fault by GPU node-1 (Agent handle: 0x51) on address (nil).\n")
    assert (fault.cause, fault.where.gpu) == ("hip_fault", None)


def test_nccl_tests_ask_for_more_gpus_than_the_node_has(explain_text: Explain) -> None:
    said = "Invalid number of GPUs: 24 requested but only 8 were found.\n .. gn07 pid 4: Test failure"
    assert explain_text(f"{said} common.cu:1454\n").cause == "invalid_device"


def test_io_error_of_a_network_is_none_of_the_storage(explain_text: Explain) -> None:
    stack = (
        "MPICH ERROR [Rank 31] [job id 881.0] [Tue Mar  3 09:10:11 2026] [gn07]\n"
        "Fatal error in PMPI_Waitall: Other MPI error\n"
        "MPIDI_OFI_handle_cq_error(1310): OFI poll failed\n"
        "   Input/output error - Invalid request descriptor)\n"
    )
    verdict = explain_text(stack + "srun: error: gn07: task 31: Aborted\n")
    assert (verdict.kind, verdict.cause) == ("consequence", "mpi_error")
    assert (verdict.where.host, verdict.where.rank) == ("gn07", 31)
    asked = " - Abort(1) (rank 31 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 31\n"
    assert explain_text(stack.splitlines()[0] + asked).cause == "mpi_abort"


def test_nccl_names_the_gpu_that_is_full(explain_text: Explain) -> None:
    verdict = explain_text("gn07:30:66 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n")
    assert (verdict.cause, verdict.where.host, verdict.where.gpu) == ("nccl_gpu_memory", "gn07", "3")


PLUGIN = "gn07:95:31 [6] nccl_net_ofi_create_plugin:10 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\n"
SOCKETS = (
    "gn07:95:31 [6] NCCL INFO net.cc:56 -> 2\n"
    "gn07:95:31 [6] NCCL INFO NET/IB : No device found.\n"
    "gn07:95:31 [6] NCCL INFO Using network Socket\n"
)


def test_network_that_nccl_does_without_is_no_cause(explain_text: Explain) -> None:
    assert explain_text(PLUGIN).cause == "efa"
    assert explain_text(PLUGIN + SOCKETS).cause in (None, "ib_not_found")


def test_network_that_is_closed_in_use_is_a_first_sign(explain_text: Explain) -> None:
    verdict = explain_text(
        "gn07:2:8 [0] recv_close:32 NCCL WARN NET/OFI Attempt to call recv_close with outstanding requests!\n"
    )
    assert (verdict.kind, verdict.cause) == ("consequence", "nccl_aborted")


NVSHMEM = (
    "{}/src/host/transport/transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA\n"
    "/src/host/init/init.cu:nvshmemi_check_state_and_init:1080: nvshmem initialization failed, exiting\n"
)


def test_reason_why_nvshmem_did_not_start(explain_text: Explain) -> None:
    assert explain_text(NVSHMEM.format("")).cause == "nvshmem_transport"
    peermem = "/src/ibgda.cpp:36: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.\n"
    assert explain_text(NVSHMEM.format(peermem)).cause == "nvshmem_peermem"
    unreached = "/src/modules/transport/ibrc/ibrc.cpp:418: non-zero status: 110 ibv_modify_qp failed\n"
    assert explain_text(NVSHMEM.format(unreached)).cause == "ib_modify_qp"


def test_gpu_that_is_not_ready_whoever_says_it(explain_text: Explain) -> None:
    burn = "  what():  Error (gpu_burn-drv.cpp:298): system not yet initialized\n"
    assert explain_text(f"terminate called\n{burn}").cause == "fabric_manager"


LAST = (
    "jaxlib.XlaRuntimeError: INTERNAL: NCCL operation ncclCommInitRank(&comm) failed: internal error - "
    "please report this issue to the NCCL. Last NCCL warning(error) log entry (may be unrelated) '{}'.; up"
)


def test_machine_that_nccl_does_not_make_out(explain_text: Explain) -> None:
    verdict = explain_text(uncaught(LAST.format("Attribute busid of node nic not found")))
    assert (verdict.cause, verdict.retry) == ("nccl_machine", None)
    other = explain_text(uncaught(LAST.format("Error: no way")))
    assert (other.cause, other.details["warning"]) == ("nccl_internal_error", "Error: no way")


def test_line_of_mpi_s_network_alone_is_none_of_the_storage(explain_text: Explain) -> None:
    verdict = explain_text(
        "Abort(808576911): Fatal error in internal_Finalize: Other MPI error\n"
        "MPIDI_OFI_handle_cq_error(593)..: OFI poll failed\n"
        "(default nic=en5: Input/output error)\n"
    )
    assert (verdict.kind, verdict.cause) == ("consequence", "mpi_error")


def test_amd_driver_that_is_not_there_comes_before_what_fails_without_it(explain_text: Explain) -> None:
    verdict = explain_text(
        "Unable to open /dev/kfd read-write: No such file or directory\n"
        "Call returned HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate resources.\n"
    )
    assert verdict.cause == "amd_driver"


def test_context_switch_that_a_kernel_held_up_is_the_program_s(explain_text: Explain) -> None:
    verdict = explain_text(
        "NVRM: Xid (PCI:0000:cb:00): 13, SM Warp Exception on (GPC 7): Illegal Instruction Parameter\n"
        "NVRM: Xid (PCI:0000:cb:00): 109, pid=17, name=python, errorString CTX SWITCH TIMEOUT, Info 0x58\n"
    )
    assert (verdict.kind, verdict.cause) == ("suspect", "xid_program")


def test_reductions_of_switches_that_nccl_does_without(explain_text: Explain) -> None:
    refused = (
        "gn07:104:114 [7] sharp_plugin.c:320 NCCL WARN SHARP coll init error: Cannot create SHARP job(-11)\n"
    )
    fault = uncaught("RuntimeError: CUDA error: an illegal memory access was encountered", "[rank2]: ")
    assert explain_text(refused).kind == "suspect"
    assert explain_text(refused + fault).cause == "illegal_memory_access"


def test_matrix_product_that_cublas_does_not_take(explain_text: Explain) -> None:
    said = "RuntimeError: CUDA error: {} when calling `cublasGemmEx( handle, opa, opb, m, n, k)`"
    assert explain_text(uncaught(said.format("CUBLAS_STATUS_INVALID_VALUE"))).cause == "cublas_argument"
    assert explain_text(uncaught(said.format("CUBLAS_STATUS_EXECUTION_FAILED"))).cause == "cublas"
    said = "/TransformerEngine/common/gemm/cublaslt_gemm.cu:412 in function cublas_gemm: cuBLAS Error: {}\n"
    assert (
        explain_text(said.format("an unsupported value or parameter was passed")).cause == "cublas_argument"
    )
    assert explain_text(said.format("the library was not initialized")).cause == "cublas"


def test_status_of_an_intel_gpu_tells_its_kind(explain_text: Explain) -> None:
    said = "RuntimeError: level_zero backend failed with error: {} (UR_RESULT_ERROR_{})"
    unknown = explain_text(uncaught(said.format(2147483646, "UNKNOWN")))
    assert (unknown.cause, unknown.details["status"]) == ("xpu_error", "UR_RESULT_ERROR_UNKNOWN")
    assert explain_text(uncaught(said.format(40, "OUT_OF_RESOURCES"))).cause == "device_out_of_memory"
    assert explain_text(uncaught(said.format(20, "DEVICE_LOST"))).cause == "gpu_hung"


def test_memory_that_omni_path_may_not_lock_is_no_limit_of_processes(explain_text: Explain) -> None:
    verdict = explain_text(
        "c5.28959map_hfi_mem: mmap of rcvhdr_bufbase (0xdabb0000) size 262144 failed: "
        "Resource temporarily unavailable\n[c5:28959] Signal: Aborted (6)\n"
    )
    assert verdict.cause == "mpi_network"
    alone = explain_text("bash: fork failed: Resource temporarily unavailable\n")
    assert alone.cause == "too_many_threads"


def test_version_that_a_library_does_not_have_is_a_mixture_of_libraries(explain_text: Explain) -> None:
    said = "ImportError: /opt/intel/libur_loader.so.0: version `{}' not found (required by /env/libsycl.so.8)"
    mixed = explain_text(uncaught(said.format("LIBUR_LOADER_0.10")))
    assert (mixed.cause, mixed.details["version"]) == ("extension_abi", "LIBUR_LOADER_0.10")
    assert explain_text(uncaught(said.format("GLIBCXX_3.4.30"))).cause == "libstdcxx"


def test_argument_that_nccl_refuses_is_the_program_s(explain_text: Explain) -> None:
    verdict = explain_text(
        "node-1:8:11 [1] misc/argcheck.cc:39 NCCL WARN Recv : invalid root 4 (root should be in the 0..3)\n"
        + uncaught(
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, invalid usage", "[rank4]: "
        )
    )
    assert (verdict.cause, verdict.retry, verdict.details["call"]) == ("nccl_argument", "no", "Recv")


def test_memory_that_ucx_may_not_lock_is_not_the_host_s(explain_text: Explain) -> None:
    verdict = explain_text(
        "[1652739463.05] [cn22:4071:0] ib_iface.c:1035 UCX  ERROR ibv_create_cq(cqe=4096) failed: "
        "Cannot allocate memory\n[cn22:4071] pml_ucx.c:309  Error: Failed to create UCP worker\n"
        "[cn22:4071] pml_ucx.c:296 Error: ucp_ep_create(proc=3172) failed: Input/output error\n"
    )
    assert (verdict.cause, verdict.notes) == ("locked_memory", ())


def test_neuron_without_its_driver_comes_before_what_fails_without_it(explain_text: Explain) -> None:
    lines = "2026-Mar-29 07:07:29.0082 11:11 ERROR NRT:nrt_init Unable to determine Neuron Driver version.\n"
    lines += uncaught("RuntimeError: The following operation failed in the TorchScript interpreter.")
    assert explain_text(lines).cause == "neuron_device"
    assert explain_text(uncaught("RuntimeError: nrt_load status=4")).details["status"] == "4"


def test_assertion_on_the_gpu_stands_behind_the_transform_that_failed(explain_text: Explain) -> None:
    failed = uncaught("RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR")
    assert explain_text(failed).cause == "cufft"
    asserted = (
        "../aten/src/ATen/native/cuda/Indexing.cu:747: indexFuncSmallIndex: block: [0,0,0], thread: [0,0,0] "
        "Assertion `dstIndex < dstAddDimSize` failed.\n"
    )
    assert explain_text(failed + asserted).cause == "device_assert"


def test_library_that_crashed_is_the_first_of_the_stack_that_is_not_the_systems(
    explain_text: Explain,
) -> None:
    verdict = explain_text(
        "[gn07:4711] *** Process received signal ***\n"
        "[gn07:4711] Signal: Segmentation fault (11)\n"
        "[gn07:4711] Failing at address: 0x8\n"
        "[gn07:4711] [ 0] /usr/lib64/libpthread.so.0(+0xf6d0)[0x2aab446d0]\n"
        "[gn07:4711] [ 1] /opt/mpi/lib/libmpi.so.40(opal_memory_ptmalloc2_int_free+0x2db)[0x2aab4e7db]\n"
        "[gn07:4711] [ 2] /env/lib/python3.11/fastcomm/core.cpython-311.so(+0x76c42)[0x2aab55c42]\n"
        "[gn07:4711] [ 3] /env/lib/libpython3.11.so.1.0(PyRun_SimpleFileExFlags+0xe7)[0x2aab66a77]\n"
        "[gn07:4711] *** End of error message ***\n"
    )
    assert (verdict.cause, verdict.where.host) == ("segfault", "gn07")
    assert verdict.details["library"] == "/env/lib/python3.11/fastcomm/core.cpython-311.so"


def test_rank_of_a_failed_mpi_call_is_the_second_number_of_who_reported_it(explain_text: Explain) -> None:
    verdict = explain_text(
        "[cn18:4026] *** An error occurred in MPI_Reduce\n"
        "[cn18:4026] *** reported by process [2538104278,200]\n"
        "[cn18:4026] *** on communicator MPI_COMM_WORLD\n"
        "[cn18:4026] *** MPI_ERR_OTHER: known error not in list\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.where.rank) == ("mpi_error", "cn18", 200)


def test_gpu_library_that_mpi_lacks_outranks_the_crash_that_its_abort_brings(explain_text: Explain) -> None:
    says = "MPIDI_CRAY_init: GPU_SUPPORT_ENABLED is requested, but GTL library is not linked"
    verdict = explain_text(
        "[30711] signal 11 (1): Segmentation fault\n"
        "in expression starting at /home/me/halo.jl:3\n"
        "MPICH ERROR [Rank 2] [job id 4711.0] [Mon Nov 23 10:11:12 2026] [x9001] - "
        f"Abort(-1) (rank 2 in comm 0): {says}\n"
        " (Other MPI error)\n\n"
        f"aborting job:\n{says}\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.where.rank) == ("mpi_gpu_library", "x9001", 2)


@pytest.mark.parametrize(
    ("said", "cause"),
    [("Bad address", "mpi_gpu_buffer"), ("Resource temporarily unavailable", "mpi_network_full")],
)
def test_mpi_call_that_failed_is_told_by_what_the_network_said(
    explain_text: Explain, said: str, cause: str
) -> None:
    verdict = explain_text(
        "Fatal error in PMPI_Allgather: Other MPI error, error stack:\n"
        "PMPI_Allgather(216)........: MPI_Allgather(sbuf=0x15, scount=8, MPI_FLOAT, comm=0x84) failed\n"
        "MPIC_Isend(511)............:\n"
        f"MPIDI_OFI_send_normal(352).: OFI tagged inject failed (ofi_send.h:350:MPIDI_OFI_send:{said})\n"
        "x1.hsn.example: rank 6 exited with code 255\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.where.rank) == (cause, "x1.hsn.example", 6)


def test_ucx_that_takes_a_gpus_memory_for_the_hosts_lacks_cuda(explain_text: Explain) -> None:
    lines = (
        "[1700000000.123456] [gn3:77:0] ib_md.c:282  UCX  ERROR "
        "ibv_reg_mr(address=0x7f32, length=64, access=0xf) failed: Bad address\n"
        "[1700000000.123456] [gn3:77:0] ucp_mm.c:76  UCX  ERROR failed to register address 0x7f32 (host) "
        "length 64 on md[1]=mlx5_0: Input/output error\n"
    )
    verdict = explain_text(lines)
    assert (verdict.cause, verdict.where.host) == ("ucx_host_memory", "gn3")


def test_nccl_names_the_gpu_of_the_process_that_broke_off(explain_text: Explain) -> None:
    broken = uncaught("torch.AcceleratorError: CUDA error: unspecified launch failure")
    told = "gpu-a17:90211:91002 [3] {}NCCL WARN Cuda failure 719 'unspecified launch failure'\n"
    closed = "gpu-a17:90210:91001 [2] NCCL WARN socketProgress: Connection closed by remote peer gpu-a17<9>\n"
    for file in ("", "enqueue.cc:1558 "):
        verdict = explain_text(broken + told.format(file) + closed)
        assert (verdict.cause, str(verdict.where)) == ("launch_failure", "host gpu-a17, GPU 3")
    # A process that has memory to register knows its GPU, the first one too.
    registers = "gpu-a17:90208:91004 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address\n"
    refused = explain_text(registers)
    assert (refused.cause, str(refused.where)) == ("ib_gpu_memory", "host gpu-a17, GPU 0")
    # What NCCL says else is not of the process that raised.
    assert str(explain_text(broken + closed).where) == ""


ENDED = "x3006c0s1b0n0.hsn.cm.example.org: rank 0 exited with code 2\n"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("GPUassert: out of memory single_join.cu 250", "cuda_out_of_memory"),
        ("cudaCheckError() failed at main.cu:34 : out of memory", "cuda_out_of_memory"),
        ("Cuda error in file 'main.cu' in line 34 : out of memory.", "cuda_out_of_memory"),
        ("GPUassert: out of memory src/relation.hip 559", "device_out_of_memory"),
        ("GPUassert: invalid argument src/relation.hip 561", "cuda_call_refused"),
        ("CUDA Runtime Error: too many resources requested for launch", "cuda_call_refused"),
        ("GPUassert: initialization error main.cu 12", "cuda_start"),
        ("GPUassert: unknown error main.cu 40", "cuda_error"),
    ],
)
def test_what_programs_own_checks_say_of_a_call(said: str, cause: str, explain_text: Explain) -> None:
    verdict = explain_text(f"{said}\n{ENDED}")
    assert (verdict.cause, verdict.where.rank) == (cause, 0)


def test_pinned_memory_is_none_of_the_gpu(explain_text: Explain) -> None:
    assert explain_text("cudaMallocHost() failed at a.cu:3 : out of memory\n").cause != "cuda_out_of_memory"


@pytest.mark.parametrize(
    "said",
    [
        (
            "rocdevice.cpp:3583: Aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES:\n"
            "The runtime failed to allocate the necessary resources. Available Free mem : 24 MB\n"
        ),
        (
            "serve/sycl: memcpy failed: level_zero backend failed with error: 39 "
            "(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)\nserve: saving a part failed\n"
        ),
    ],
)
def test_memory_of_other_makers_cards(said: str, explain_text: Explain) -> None:
    verdict = explain_text(said)
    assert (verdict.kind, verdict.cause) == ("cause", "device_out_of_memory")


def test_crash_of_the_allocator_is_the_cause_where_the_job_then_stood_still(explain_text: Explain) -> None:
    verdict = explain_text(
        "[n332:82320] *** Process received signal ***\n[n332:82320] Signal: Aborted (6)\n"
        "[n332:82320] [ 2] /lib64/libc.so.6(abort+0x110) [0x3c50231cc0]\n"
        "[n332:82320] [ 5] /lib64/libc.so.6(__libc_malloc+0x7a) [0x3c5027402a]\n"
        "[n332:82320] *** End of error message ***\n=>> PBS: job killed: walltime 117 exceeded limit 90\n"
    )
    assert (verdict.cause, verdict.where.host) == ("heap_corruption", "n332")


@pytest.mark.parametrize(
    ("said", "cause", "details"),
    [
        (
            (
                "Execution of replica 3 failed: INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled "
                "system error. Last NCCL warning(error) log entry (may be unrelated) 'socket closed early'."
            ),
            "nccl_system_error",
            {"replica": "3", "warning": "socket closed early"},
        ),
        (
            (
                "Execution of replica 6 failed: RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB "
                "(2147483648B) on device ordinal 2"
            ),
            "jax_out_of_memory",
            {"replica": "6", "asked": "2.00GiB"},
        ),
        (
            (
                "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.5GiB.: while running "
                "replica 4 and partition 1 of a replicated computation"
            ),
            "jax_out_of_memory",
            {"replica": "4", "partition": "1"},
        ),
    ],
)
def test_xla_tells_which_replica_failed(
    explain_text: Explain, said: str, cause: str, details: dict[str, str]
) -> None:
    verdict = explain_text(f"E0304 05:06:07.123456 4711 pjrt_stream_executor_client.cc:2593] {said}\n")
    assert (verdict.cause, verdict.details) == (cause, details)


def test_a_thread_of_data_parallel_names_its_gpu(explain_text: Explain) -> None:
    verdict = explain_text(
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 30, in <module>\n    out = model(x)\n'
        "ValueError: Caught ValueError in replica 2 on device 2.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/job/train.py", line 12, in forward\n    raise ValueError("no row is left")\n'
        "ValueError: no row is left\n"
    )
    assert (verdict.title, str(verdict.where)) == ("ValueError: no row is left", "GPU 2")


TRACEBACK = "Traceback (most recent call last):\n"
TORCHRUN = "ERROR:torch.distributed.elastic.multiprocessing.api"
ABORTED = "signal 6 (Aborted).\n"
ASSERTED = "".join(
    f"../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss: block: [0,0,0], thread: [{thread},0,0] "
    "Assertion `t >= 0 && t < n_classes` failed.\n"
    for thread in range(9)
)


@pytest.mark.parametrize(
    ("below", "place"),
    [
        ("", ""),
        (
            (
                f"[rank6]: {TRACEBACK}"
                '[rank6]:   File "/job/train.py", line 88, in main\n[rank6]:     loss.backward()\n'
            ),
            "rank 6",
        ),
        (
            (
                "[rank5]:[E304 05:06:08.123456789 ProcessGroupNCCL.cpp:1595] [PG ID 0 Rank 5] Process group "
                "watchdog thread terminated with exception: CUDA error: device-side assert triggered\n"
            ),
            "rank 5",
        ),
        (f"{TORCHRUN}:failed (exitcode: -6) local_rank: 2 (pid: 93)\n", "local rank 2"),
        (
            f"mpirun noticed that process rank 3 with PID 12 on node gn07 exited on {ABORTED}",
            "host gn07, rank 3",
        ),
        ("srun: error: gn07: task 5: Aborted\n", "host gn07, task 5"),
        ("Process 3 exit with status code 134.\n", "rank 3"),
    ],
)
def test_the_rank_of_an_assertion_is_told_by_what_stands_below_its_lines(
    explain_text: Explain, below: str, place: str
) -> None:
    verdict = explain_text(f"epoch 1 loss 0.3\n{ASSERTED}{below}")
    assert (verdict.cause, str(verdict.where)) == ("device_assert", place)


def test_what_the_answers_own_process_then_did_is_not_told_of_others(explain_text: Explain) -> None:
    ended = "Process 3 exit with status code 134.\n"
    assert explain_text(ASSERTED + ended).consequences == ()
    others = "[rank1]: RuntimeError: Connection closed by peer [10.0.0.2]:4711\n"
    assert [one.text for one in explain_text(ASSERTED + others + ended).consequences] == [
        "1 other rank then lost the connection"
    ]
