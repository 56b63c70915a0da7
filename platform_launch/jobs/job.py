"""One job, whatever runs it: how many nodes, what they need, and what they start."""

from __future__ import annotations

from dataclasses import dataclass

from platform_launch.errors import InputError
from platform_launch.jobs import names
from platform_launch.text import Phrase

GPU_RESOURCE = "nvidia.com/gpu"
DEFAULT_NOTICE_S = 120
SHM = "/dev/shm"  # noqa: S108  a mount, not a file of ours
_DEFAULT_SHM_GIB = 64
_TAKEN = ("/", "/dev", "/proc", SHM)


@dataclass(frozen=True)
class Volume:
    """A folder of the node (``source`` starts with /) or a PersistentVolumeClaim, mounted at ``path``."""

    source: str
    path: str
    read_only: bool = False

    def __post_init__(self) -> None:
        names.check_folder(self.path, Phrase("volume path"))
        if self.on_node:
            names.check_folder(self.source, Phrase("volume source"))
        else:
            names.check_object_name(self.source, Phrase("volume claim"))

    @property
    def on_node(self) -> bool:
        """Whether it is a folder of the node itself."""
        return self.source.startswith("/")

    @property
    def place(self) -> str:
        """Where it is mounted, however the path was written: /data for //data/./ too."""
        return "/" + "/".join(part for part in self.path.split("/") if part not in ("", "."))


@dataclass(frozen=True)
class SecretVariable:
    """A variable whose value stays in a Kubernetes Secret: manifests are kept in git, secrets are not."""

    variable: str
    secret: str
    key: str

    def __post_init__(self) -> None:
        names.check_variable(self.variable)
        names.check_object_name(self.secret, "Secret")
        names.check_secret_key(self.key)


@dataclass(frozen=True)
class Rdma:
    """The extended resource that stands for RDMA ports on this cluster, and how many a node."""

    resource: str
    count: int = 1

    def __post_init__(self) -> None:
        names.check_resource(self.resource, Phrase("RDMA resource"))
        if self.resource == GPU_RESOURCE:
            raise InputError(
                Phrase(
                    "RDMA resource {resource} is the GPUs: expected one like rdma/hca_shared_devices_a",
                    resource=GPU_RESOURCE,
                ),
                "GPUs are said by gpus_per_node",
            )


@dataclass(frozen=True)
class Job:
    """What every target renders. Counts are per node; None means "not said".

    ``entrypoint``: absolute path of start_multinode_platform.sh where the job runs. ``script`` and
    ``options`` go to it; ``arguments`` follow ``--``: a command if there is no script. ``spares``: nodes
    that wait beside the others. ``queue``: Slurm partition, Volcano queue or Kueue's LocalQueue.
    ``retries``: how often the whole job may start again.
    ``requeue``: let Slurm start it again after its time limit or a lost node. ``notice_s``: seconds before
    Slurm's time limit at which the training is told to save. ``grace_s``: seconds from SIGTERM to SIGKILL,
    which must exceed the launcher's own. ``exclude`` are nodes that it must not run on, ``quarantine`` is the
    file of more of them, where the job runs.

    Raises InputError for what no scheduler would take.
    """

    name: str
    entrypoint: str
    nodes: int = 1
    spares: int = 0
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
    exclude: tuple[str, ...] = ()
    quarantine: str | None = None
    retries: int = 3
    requeue: bool = False
    notice_s: int = DEFAULT_NOTICE_S
    grace_s: int = 60
    script: str | None = None
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names.check_plain(self.name, "name")  # stricter for what is not Slurm: see render
        if self.spares and self.nodes < 2:
            raise InputError(
                Phrase(
                    "spares {spares} beside {nodes} node: expected at least 2 nodes that train",
                    spares=self.spares,
                    nodes=self.nodes,
                ),
                "with one node nobody is left when it is lost; raise nodes, or leave the spares out",
            )
        names.check_path(self.entrypoint, "entrypoint")
        self._check_placement()
        self._check_texts()
        if self.memory_gib is not None and self.shm >= self.memory_gib:
            raise InputError(
                Phrase(
                    "shm_gib {shm} does not fit into memory_gib {memory}: shared memory counts "
                    "towards the limit",
                    shm=self.shm,
                    memory=self.memory_gib,
                ),
                "raise memory_gib, or lower shm_gib",
            )
        if self.time_limit_s is not None and self.time_limit_s <= self.notice_s:
            raise InputError(
                Phrase(
                    "time {limit_s} s is over before the notice {notice_s} s ahead of its end",
                    limit_s=self.time_limit_s,
                    notice_s=self.notice_s,
                ),
                "raise time, or lower notice",
            )

    @property
    def shm(self) -> int:
        """Size of /dev/shm in GiB: as asked, or half the memory, as Linux itself would make it."""
        if self.shm_gib is not None:
            return self.shm_gib
        return _DEFAULT_SHM_GIB if self.memory_gib is None else max(1, self.memory_gib // 2)

    @property
    def started(self) -> int:
        """How many nodes the scheduler starts."""
        return self.nodes + self.spares

    @property
    def names_program(self) -> bool:
        """Whether it names what to run: a script, a module, an example, or a command in its arguments."""
        named = map(self._has_option, ("--script", "--module", "-m", "--example"))
        return self.script is not None or any(named) or bool(self.arguments)

    @property
    def command_arguments(self) -> tuple[str, ...]:
        """What follows the entrypoint: its options, ``--``, and the arguments or the command."""
        script = () if self.script is None else ("--script", self.script)
        return (
            *script,
            *self.options,
            *self._spare_options,
            *(("--", *self.arguments) if self.arguments else ()),
        )

    @property
    def _spare_options(self) -> tuple[str, ...]:
        if not self.spares:
            return ()
        restarts = () if self._has_option("--max-restarts") else ("--max-restarts", str(max(self.retries, 1)))
        return ("--spares", str(self.spares), *restarts)

    def _has_option(self, name: str) -> bool:
        return any(option.split("=")[0] == name for option in self.options)

    def _check_placement(self) -> None:
        if self.image is not None:
            names.check_image(self.image)
        if self.namespace is not None:
            names.check_namespace(self.namespace)
        if self.queue is not None:
            # Kubernetes targets are stricter (see names.check_queue); a partition may be a list.
            names.check_directive(self.queue, "queue")
        if self.account is not None:
            names.check_directive(self.account, "account")
        for key, value in self.node_selector:
            names.check_qualified(key, Phrase("node label"))
            names.check_label_value(value, Phrase("value of node label {key}", key=key))
        for key in self.tolerations:
            names.check_qualified(key, Phrase("taint"))
        for node in self.exclude:
            names.check_plain(node, Phrase("node"))
        if self.quarantine is not None:
            names.check_path(self.quarantine, "quarantine")

    def _check_texts(self) -> None:
        """Environment, options and arguments may hold anything that a text file can carry."""
        own = [name for name, _ in self.env] + [secret.variable for secret in self.secret_env]
        for name in own:
            names.check_variable(name)
            if own.count(name) > 1:
                raise InputError(Phrase("environment variable {name} is set twice: expected once", name=name))
        for name, value in self.env:
            names.check_text(value, Phrase("environment variable {name}", name=name))
        if self.script == "":
            raise InputError("script is empty: expected the path of a file")
        for text in (self.script or "", *self.options, *self.arguments):
            names.check_text(text, Phrase("argument"))
        if "--" in self.options:
            raise InputError(
                "options hold '--': expected options of the launcher only",
                "what follows -- belongs to arguments",
            )
        places = [volume.place for volume in self.volumes]
        for place in places:
            if places.count(place) > 1 or place in _TAKEN:
                raise InputError(
                    Phrase(
                        "volume path {place!r} is taken: expected each once, and none of {taken}",
                        place=place,
                        taken=", ".join(_TAKEN),
                    )
                )
