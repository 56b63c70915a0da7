"""One job, whatever runs it: how many nodes, what they need, and what they start."""

from __future__ import annotations

from dataclasses import dataclass

from platform_launch.errors import InputError
from platform_launch.jobs import names

GPU_RESOURCE = "nvidia.com/gpu"
DEFAULT_NOTICE_S = 120
SHM = "/dev/shm"  # noqa: S108  a mount, not a file of ours
_DEFAULT_SHM_GIB = 64


@dataclass(frozen=True)
class Volume:
    """A folder of the node (``source`` starts with /) or a PersistentVolumeClaim, mounted at ``path``."""

    source: str
    path: str
    read_only: bool = False

    def __post_init__(self) -> None:
        names.check_path(self.path, "volume path")
        if self.on_node:
            names.check_path(self.source, "volume source")
        else:
            names.check_object_name(self.source, "volume claim")

    @property
    def on_node(self) -> bool:
        """Whether it is a folder of the node itself."""
        return self.source.startswith("/")


@dataclass(frozen=True)
class SecretVariable:
    """A variable whose value stays in a Kubernetes Secret: manifests are kept in git, secrets are not."""

    variable: str
    secret: str
    key: str

    def __post_init__(self) -> None:
        names.check_variable(self.variable)
        names.check_object_name(self.secret, "Secret")
        names.check_qualified(self.key, "key of the Secret")


@dataclass(frozen=True)
class Rdma:
    """The extended resource that stands for RDMA ports on this cluster, and how many a node."""

    resource: str
    count: int = 1

    def __post_init__(self) -> None:
        names.check_qualified(self.resource, "RDMA resource")
        if "/" not in self.resource:
            raise InputError(
                f"RDMA resource {self.resource!r}: expected a form like rdma/hca_shared_devices_a"
            )


@dataclass(frozen=True)
class Job:
    """What every target renders. Counts are per node; None means "not said".

    ``entrypoint``: absolute path of start_multinode_platform.sh where the job runs. ``script`` (None: the
    default training) and ``options`` go to it, ``arguments`` behind ``--`` to the script. ``queue``: Slurm
    partition, Volcano queue or Kueue's LocalQueue. ``retries``: how often the whole job may start again.
    ``requeue``: let Slurm start it again after its time limit or a lost node. ``notice_s``: seconds before
    Slurm's time limit at which the training is told to save. ``grace_s``: seconds from SIGTERM to SIGKILL,
    which must exceed the launcher's own.

    Raises InputError for what no scheduler would take.
    """

    name: str
    entrypoint: str
    nodes: int = 1
    gpus_per_node: int = 8
    image: str | None = None
    namespace: str | None = None
    queue: str | None = None
    account: str | None = None
    time_limit_s: int | None = None
    cpus: int | None = None
    memory_gib: int | None = None
    shm_gib: int | None = None
    rdma: Rdma | None = None
    volumes: tuple[Volume, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[SecretVariable, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    retries: int = 3
    requeue: bool = False
    notice_s: int = DEFAULT_NOTICE_S
    grace_s: int = 60
    script: str | None = None
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names.check_name(self.name)
        names.check_path(self.entrypoint, "entrypoint")
        self._check_placement()
        self._check_texts()
        if self.memory_gib is not None and self.shm >= self.memory_gib:
            raise InputError(
                f"shm_gib {self.shm} does not fit into memory_gib {self.memory_gib}: "
                "shared memory counts towards the limit",
                "raise memory_gib, or lower shm_gib",
            )
        if self.time_limit_s is not None and self.time_limit_s <= self.notice_s:
            raise InputError(
                f"time {self.time_limit_s} s is over before the notice {self.notice_s} s ahead of its end",
                "raise time, or lower notice",
            )

    @property
    def shm(self) -> int:
        """Size of /dev/shm in GiB: as asked, or half the memory, as Linux itself would make it."""
        if self.shm_gib is not None:
            return self.shm_gib
        return _DEFAULT_SHM_GIB if self.memory_gib is None else max(1, self.memory_gib // 2)

    @property
    def command_arguments(self) -> tuple[str, ...]:
        """What follows the entrypoint: its options, ``--``, the script's arguments."""
        script = () if self.script is None else ("--script", self.script)
        return (*script, *self.options, *(("--", *self.arguments) if self.arguments else ()))

    def _check_placement(self) -> None:
        if self.image is not None:
            names.check_image(self.image)
        if self.namespace is not None:
            names.check_object_name(self.namespace, "namespace")
        if self.queue is not None:
            names.check_qualified(self.queue, "queue")
        if self.account is not None:
            names.check_directive(self.account, "account")
        for key, value in self.node_selector:
            names.check_qualified(key, "node label")
            if value:
                names.check_qualified(value, f"value of node label {key}")
        for key in self.tolerations:
            names.check_qualified(key, "taint")

    def _check_texts(self) -> None:
        """Environment, options and arguments may hold anything that a text file can carry."""
        own = [name for name, _ in self.env] + [secret.variable for secret in self.secret_env]
        for name in own:
            names.check_variable(name)
            if own.count(name) > 1:
                raise InputError(f"environment variable {name} is set twice: expected once")
        for name, value in self.env:
            names.check_text(value, f"environment variable {name}")
        if self.script == "":
            raise InputError("script is empty: expected the path of a file")
        for text in (self.script or "", *self.options, *self.arguments):
            names.check_text(text, "argument")
        if "--" in self.options:
            raise InputError(
                "options hold '--': expected options of the launcher only",
                "what follows -- belongs to arguments",
            )
        paths = [volume.path.rstrip("/") for volume in self.volumes]
        for path in paths:
            if paths.count(path) > 1 or path in ("", SHM):
                raise InputError(f"volume path {path or '/'!r} is taken: expected each path once")
