"""Vendors of accelerators, one table each: variables, device nodes, and names in torch and other libraries.

A new vendor is a new table; only counting its devices may need code (``accelerators``). ``grade`` is how far
the table can be trusted: ``measured`` was run against the driver or a library posing as it, ``documented`` is
from the vendor's documentation or source, ``reported`` is from public users.
"""

from __future__ import annotations

from platform_launch.values import dataclass

Names = tuple[str, ...]


@dataclass(frozen=True)
class Vendor:
    """One vendor.

    ``visible`` lists the variables that choose devices in stages: what the first stage leaves is renumbered
    for the next, and of one stage the first variable that is set counts. ``exported`` is the one to set when
    none is. ``granted`` are set by container runtimes and device plugins, ``marks`` by platforms. ``nodes``
    are patterns of device nodes below /dev. If a folder of /dev is shared with other kinds of devices
    (``shared``), its nodes are this vendor's if the bus has devices with these ``pci`` ids. ``backend`` is
    torch.distributed's name, ``collectives`` the library behind it, ``torch_module`` is the extra module that
    torch needs. ``deepspeed`` is a value of DS_ACCELERATOR and ``jax`` of JAX_PLATFORMS, empty if the library
    finds the devices itself or does not support them. ``counted``: this launcher counts the devices; the
    others start with ``--nproc-per-node`` only. ``container`` is how a container gets them, according to the
    source.
    """

    key: str
    title: str
    device: str
    grade: str
    source: str
    visible: tuple[Names, ...] = ()
    exported: str = ""
    granted: Names = ()
    marks: Names = ()
    nodes: Names = ()
    shared: str = ""
    pci: Names = ()
    collectives: str = ""
    backend: str = ""
    torch_module: str = ""
    deepspeed: str = ""
    jax: str = ""
    counted: bool = False
    container: str = "docker run --gpus or --device, apptainer exec --nv or --rocm, a limit in Kubernetes"

    @property
    def reads_nccl(self) -> bool:
        """Whether its collective library is configured by NCCL_* variables."""
        return self.collectives in ("NCCL", "RCCL")


NVIDIA = Vendor(
    key="nvidia",
    title="NVIDIA",
    device="GPU",
    grade="measured",
    source="NVML; CUDA Programming Guide, CUDA Environment Variables; NVIDIA Container Toolkit",
    visible=(("CUDA_VISIBLE_DEVICES",),),
    exported="CUDA_VISIBLE_DEVICES",
    granted=("NVIDIA_VISIBLE_DEVICES",),
    nodes=("nvidia[0-9]*",),
    collectives="NCCL",
    backend="nccl",
    jax="cuda,cpu",
    counted=True,
    container="docker run --gpus all, apptainer exec --nv, the limit nvidia.com/gpu in Kubernetes",
)

AMD = Vendor(
    key="amd",
    title="AMD",
    device="GPU",
    grade="documented",
    source="rocm.docs.amd.com: GPU isolation, RCCL environment variables; Linux kfd_topology.c",
    visible=(
        ("ROCR_VISIBLE_DEVICES",),
        ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    ),
    exported="HIP_VISIBLE_DEVICES",
    granted=("AMD_VISIBLE_DEVICES",),
    collectives="RCCL",
    backend="nccl",
    deepspeed="cuda",
    jax="rocm,cpu",
    counted=True,
    container=(
        "docker run --device=/dev/kfd --device=/dev/dri, apptainer exec --rocm, "
        "the limit amd.com/gpu in Kubernetes"
    ),
)

ASCEND = Vendor(
    key="ascend",
    title="Ascend",
    device="NPU",
    grade="documented",
    source="hiascend.com: CANN environment variables, Ascend Docker Runtime; DeepSpeed real_accelerator.py",
    visible=(("ASCEND_RT_VISIBLE_DEVICES",),),
    exported="ASCEND_RT_VISIBLE_DEVICES",
    granted=("ASCEND_VISIBLE_DEVICES",),
    nodes=("davinci[0-9]*",),
    collectives="HCCL",
    backend="hccl",
    torch_module="torch_npu",
    deepspeed="npu",
    counted=True,
    container=(
        "ASCEND_VISIBLE_DEVICES with Ascend Docker Runtime, "
        "a limit such as huawei.com/Ascend910 in Kubernetes"
    ),
)

INTEL = Vendor(
    key="intel",
    title="Intel",
    device="XPU",
    grade="documented",
    source="Level Zero specification, Environment Variables; oneCCL, Environment Variables; Linux i915, xe",
    visible=(("ZE_AFFINITY_MASK",),),
    collectives="oneCCL",
    backend="xccl",
    deepspeed="xpu",
    counted=True,
    container="docker run --device=/dev/dri, the limit gpu.intel.com/i915 or gpu.intel.com/xe in Kubernetes",
)

OTHERS = (
    Vendor(
        key="gaudi",
        title="Intel Gaudi",
        device="HPU",
        grade="documented",
        source="docs.habana.ai; Ray, Accelerator Support; Linux, drivers/accel/habanalabs",
        visible=(("HABANA_VISIBLE_MODULES",),),
        granted=("HABANA_VISIBLE_DEVICES",),
        nodes=("hl[0-9]*",),
        shared="accel",
        pci=("1da3:*",),
        deepspeed="hpu",
    ),
    Vendor(
        key="tpu",
        title="Google TPU",
        device="TPU",
        grade="documented",
        source="cloud.google.com: TPUs in GKE; Ray, Accelerator Support; JAX, hardware_utils.py",
        visible=(("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"),),
        marks=("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE", "TPU_CHIPS_PER_HOST_BOUNDS"),
        nodes=("accel[0-9]*",),
        shared="vfio",
        pci=("1ae0:0027", "1ae0:0056", "1ae0:005e", "1ae0:0062", "1ae0:0063", "1ae0:006f", "1ae0:0076"),
        jax="tpu,cpu",
    ),
    Vendor(
        key="neuron",
        title="AWS Neuron",
        device="NeuronCore",
        grade="documented",
        source="awsdocs-neuron: NeuronX Runtime Configuration",
        visible=(("NEURON_RT_VISIBLE_CORES",),),
        marks=("NEURON_RT_NUM_CORES",),
        nodes=("neuron[0-9]*",),
    ),
    Vendor(
        key="cambricon",
        title="Cambricon",
        device="MLU",
        grade="reported",
        source="cambricon-k8s-device-plugin; DeepSpeed real_accelerator.py",
        visible=(("MLU_VISIBLE_DEVICES",),),
        granted=("CAMBRICON_VISIBLE_DEVICES",),
        nodes=("cambricon_dev[0-9]*",),
        deepspeed="mlu",
    ),
    Vendor(
        key="mthreads",
        title="Moore Threads",
        device="GPU",
        grade="reported",
        source="public images and manuals of MUSA",
        visible=(("MUSA_VISIBLE_DEVICES",),),
        granted=("MTHREADS_VISIBLE_DEVICES",),
        nodes=("mtgpu.[0-9]*", "mtgpu[0-9]*"),
    ),
    Vendor(
        key="metax",
        title="MetaX",
        device="GPU",
        grade="reported",
        source="public images and manuals of MACA",
        nodes=("mxcd",),
    ),
    Vendor(
        key="iluvatar",
        title="Iluvatar",
        device="GPU",
        grade="reported",
        source="public users of its container toolkit",
        granted=("IX_VISIBLE_DEVICES",),
        nodes=("iluvatar[0-9]*",),
    ),
)

# In the order in which drivers are queried: a desktop may have an integrated GPU as well.
VENDORS: tuple[Vendor, ...] = (NVIDIA, AMD, ASCEND, INTEL, *OTHERS)

# Devices that a platform counted without naming the vendor.
UNKNOWN = Vendor(key="", title="", device="GPU", grade="reported", source="the platform's variables")

_BY_KEY = {vendor.key: vendor for vendor in (*VENDORS, UNKNOWN)}


def vendor_of(key: str) -> Vendor:
    """Return the vendor of a key."""
    return _BY_KEY[key]
