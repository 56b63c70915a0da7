"""Communication variables found in guides: which are real, renamed, dead or for debugging only.

Sources: NVIDIA's NCCL documentation ("Environment Variables", 2.2x), torch's ProcessGroupNCCL.hpp (2.2–2.13)
and the libraries' public issue trackers. A prefix ends in ``*``.
"""

from __future__ import annotations

from platform_launch.text import Phrase

# Fit to stay in production. The reading is NCCL's own documentation.
PRODUCTION = frozenset(
    """
    NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_SOCKET_RETRY_CNT NCCL_SOCKET_RETRY_SLEEP_MSEC
    NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD NCCL_SOCKET_POLL_TIMEOUT_MSEC
    NCCL_IB_HCA NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT NCCL_IB_GID_INDEX NCCL_IB_ADDR_FAMILY
    NCCL_IB_ADDR_RANGE NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL NCCL_IB_TC NCCL_IB_FIFO_TC NCCL_IB_AR_THRESHOLD
    NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_MERGE_VFS NCCL_IB_MERGE_NICS NCCL_IB_RETURN_ASYNC_EVENTS NCCL_IB_PKEY
    NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_ECE_ENABLE NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME
    NCCL_UID_STAGGER_RATE NCCL_UID_STAGGER_THRESHOLD NCCL_CROSS_NIC NCCL_NET NCCL_NET_PLUGIN
    NCCL_TUNER_PLUGIN NCCL_TUNER_CONFIG_PATH NCCL_PROFILER_PLUGIN NCCL_ENV_PLUGIN NCCL_NET_MERGE_LEVEL
    NCCL_NET_FORCE_MERGE NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE
    NCCL_GRAPH_FILE NCCL_GRAPH_DUMP_FILE NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS
    NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_HOSTID NCCL_COMM_ID NCCL_CONF_FILE
    NCCL_RAS_ENABLE NCCL_RAS_ADDR NCCL_RAS_TIMEOUT_FACTOR NCCL_SET_STACK_SIZE NCCL_SET_THREAD_NAME
    NCCL_COLLNET_ENABLE NCCL_COLLNET_NODE_THRESHOLD NCCL_NVTX_DISABLE NCCL_IGNORE_CPU_AFFINITY
    NCCL_WORK_FIFO_BYTES NCCL_PROGRESS_APPEND_OP_FREQ NCCL_COMM_SHRINK_SHARE_RESOURCES
    NCCL_COMM_SPLIT_SHARE_RESOURCES NCCL_COMM_BLOCKING NCCL_CGA_CLUSTER_SIZE NCCL_MAX_CTAS_PER_PEER
    NCCL_CONNECT_ROUND_ROBIN NCCL_RUNTIME_CONNECT NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_WIN_ENABLE
    NCCL_SYM_CTAS NCCL_MULTI_RANK_GPU_ENABLE NCCL_LAUNCH_ORDER_IMPLICIT NCCL_LAUNCH_RACE_FATAL
    NCCL_IB_MQP_RETRY_ALL NCCL_IB_MQP_RETRY_CNT NCCL_IB_MQP_RETRY_SLEEP_MSEC NCCL_IB_OOO_RQ
    NCCL_IB_DATA_DIRECT NCCL_IB_WARN_RAIL_LOCAL NCCL_DMABUF_ENABLE NCCL_LOCAL_REGISTER NCCL_GRAPH_REGISTER
    NCCL_GRAPH_MIXING_SUPPORT NCCL_MNNVL_UUID NCCL_MNNVL_CLIQUE_ID NCCL_GIN_ENABLE NCCL_GIN_TYPE
    """.split()  # noqa: SIM905
)

# For debugging only, according to NCCL's documentation: performance or correctness can suffer.
DEBUG_ONLY: dict[str, str] = {
    "NCCL_ALGO": Phrase("a forced algorithm fails instead of falling back since NCCL 2.24"),
    "NCCL_PROTO": Phrase("LL128 where it is not supported can corrupt data"),
    "NCCL_P2P_*": Phrase("limits transfers between GPUs of one node"),
    "NCCL_SHM_DISABLE": Phrase("sends traffic within a node through the network"),
    "NCCL_BUFFSIZE": Phrase("tuning meant for debugging"),
    "NCCL_NTHREADS": Phrase("tuning meant for debugging"),
    "NCCL_MIN_CTAS": Phrase("tuning meant for debugging"),
    "NCCL_MAX_CTAS": Phrase("tuning meant for debugging"),
    "NCCL_IB_DISABLE": Phrase("turns InfiniBand and RoCE off: traffic goes over TCP"),
    "NCCL_IB_QPS_PER_CONNECTION": Phrase("tuning meant for debugging"),
    "NCCL_IB_PCI_RELAXED_ORDERING": Phrase("tuning meant for debugging"),
    "NCCL_NET_GDR_LEVEL": Phrase("decides which NICs may reach GPU memory directly"),
    "NCCL_NET_GDR_READ": Phrase("decides which NICs may reach GPU memory directly"),
    "NCCL_NET_GDR_C2C": Phrase("decides which NICs may reach GPU memory directly"),
    "NCCL_NVLS_ENABLE": Phrase("switches NVLink SHARP"),
    "NCCL_NVLS_CHUNKSIZE": Phrase("tuning meant for debugging"),
    "NCCL_NVB_DISABLE": Phrase("limits transfers between GPUs of one node"),
    "NCCL_PXN_DISABLE": Phrase("limits which NIC a GPU may use"),
    "NCCL_CUMEM_ENABLE": Phrase("changes how memory is allocated"),
    "NCCL_CUMEM_HOST_ENABLE": Phrase("changes how memory is allocated"),
    "NCCL_MNNVL_ENABLE": Phrase("0 disables NVLink between the nodes of a rack"),
    "NCCL_CHECK_POINTERS": Phrase("checks every pointer: slow"),
    "NCCL_PAT_ENABLE": Phrase("switches an algorithm"),
}

# No release reads them any more.
DEAD: dict[str, str] = {
    "NCCL_IB_CUDA_SUPPORT": Phrase("removed in NCCL 2.4; NCCL_NET_GDR_LEVEL replaced it"),
    "NCCL_IB_GDR_LEVEL": Phrase("renamed NCCL_NET_GDR_LEVEL in NCCL 2.4"),
    "NCCL_NET_GDR_PEER": Phrase("renamed NCCL_NET_GDR_LEVEL"),
    "NCCL_LL_THRESHOLD": Phrase("removed in NCCL 2.5"),
    "NCCL_TREE_THRESHOLD": Phrase("removed in NCCL 2.5; NCCL chooses by itself"),
    "NCCL_SINGLE_RING_THRESHOLD": Phrase("removed in NCCL 2.3"),
    "NCCL_CHECKS_DISABLE": Phrase("removed in NCCL 2.2.12; see NCCL_CHECK_POINTERS"),
    "NCCL_NRINGS": Phrase("renamed NCCL_MIN_CTAS and NCCL_MAX_CTAS"),
    "NCCL_MAX_NRINGS": Phrase("renamed NCCL_MAX_CTAS"),
    "NCCL_MIN_NRINGS": Phrase("renamed NCCL_MIN_CTAS"),
    "NCCL_LAUNCH_MODE": Phrase("GROUP is no longer supported"),
}

# Still read under the old name, with a deprecation.
DEPRECATED: dict[str, str] = {
    "NCCL_MIN_NCHANNELS": "NCCL_MIN_CTAS",
    "NCCL_MAX_NCHANNELS": "NCCL_MAX_CTAS",
}

# torch 2.2 moved its own variables out of NCCL's name space.
RENAMED: dict[str, str] = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
}

# Common in guides, read by nothing. All hold seconds.
FAKE_TIMEOUTS = ("NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT")


def lookup(table: dict[str, str], name: str) -> str | None:
    """Return the entry for a variable, by full name or by prefix."""
    if name in table:
        return table[name]
    for pattern, text in table.items():
        if pattern.endswith("*") and name.startswith(pattern[:-1]):
            return text
    return None


def is_known_nccl(name: str) -> bool:
    """Whether any table knows this NCCL_ variable."""
    return (
        name in PRODUCTION
        or name in DEPRECATED
        or name in RENAMED
        or name in FAKE_TIMEOUTS
        or lookup(DEBUG_ONLY, name) is not None
        or lookup(DEAD, name) is not None
    )
