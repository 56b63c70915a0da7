"""One job for any target: how many nodes, what they need, and what they start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from platform_launch.errors import InputError, shown
from platform_launch.jobs import names
from platform_launch.text import Phrase, joined

GPU_RESOURCE = "nvidia.com/gpu"
PROGRAM = "platform-launch"
SHM = "/dev/shm"  # noqa: S108  a mount, not a file of ours
_DEFAULT_SHM_GIB = 64
_DEFAULT_NOTICE_S = 120
_WEEK_S = 7 * 24 * 3600
_TAKEN = ("/", "/dev", "/proc", SHM)
_KINDS_OF_VOLUME = ("secret", "configmap")

SECURITY = ("restricted",)
GANGS = ("volcano", "scheduler-plugins")

KUBERNETES_ONLY = (
    "image", "namespace", "volumes", "shm_gib", "rdma", "resources", "gpu_resource", "node_selector",
    "tolerations", "labels", "annotations", "image_pull_secrets", "service_account", "security", "run_as",
    "priority_class", "scheduler", "gang", "host_network", "runtime", "ttl_s", "patch",
)  # fmt: skip
"""Fields that only Kubernetes has."""


@dataclass(frozen=True)
class Volume:
    """What is mounted at ``path``; the form of ``source`` decides what it is.

    ``/folder``: a folder of the node; ``SERVER:/folder``: an NFS export; ``secret/NAME`` and
    ``configmap/NAME``; anything else: a PersistentVolumeClaim.
    """

    source: str
    path: str
    read_only: bool = False

    def __post_init__(self) -> None:
        names.check_folder(self.path, Phrase("volume path"))
        if self.on_node:
            names.check_folder(self.source, Phrase("volume source"))
        elif self.nfs:
            server, export = self.nfs
            names.check_object_name(server, Phrase("NFS server"))
            names.check_folder(export, Phrase("NFS export"))
        elif self.named:
            names.check_object_name(self.named[1], Phrase("volume source"))
        else:
            names.check_object_name(self.source, Phrase("volume claim"))

    @property
    def on_node(self) -> bool:
        """Whether it is a folder of the node itself."""
        return self.source.startswith("/")

    @property
    def nfs(self) -> tuple[str, str] | None:
        """Server and folder of an NFS export."""
        server, separator, export = self.source.partition(":")
        return (server, export) if separator else None

    @property
    def named(self) -> tuple[str, str] | None:
        """``secret`` or ``configmap``, and the name of the object."""
        kind, separator, name = self.source.partition("/")
        return (kind, name) if separator and kind in _KINDS_OF_VOLUME else None

    @property
    def place(self) -> str:
        """The mount path in its normal form: /data for //data/./."""
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
    """The extended resource for the RDMA ports of this cluster, and how many each node needs."""

    resource: str
    count: int = 1

    def __post_init__(self) -> None:
        names.check_resource(self.resource, Phrase("RDMA resource"))


@dataclass(frozen=True)
class Toleration:
    """A taint that the pods tolerate; an empty ``value`` or ``effect`` matches any."""

    key: str
    value: str = ""
    effect: str = ""

    def __post_init__(self) -> None:
        names.check_qualified(self.key, Phrase("taint"))
        names.check_label_value(self.value, Phrase("value of taint {key}", key=self.key))
        effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
        if self.effect and self.effect not in effects:
            raise InputError(
                Phrase(
                    "taint {key} with effect {effect}: expected one of {effects}",
                    key=self.key,
                    effect=shown(self.effect),
                    effects=joined(effects),
                )
            )


@dataclass(frozen=True)
class RunAs:
    """User and group that the container runs as."""

    user: int
    group: int


@dataclass(frozen=True)
class Runtime:
    """A runtime that the cluster has; ``kind`` is TrainingRuntime or ClusterTrainingRuntime."""

    kind: str
    name: str

    def __post_init__(self) -> None:
        names.check_object_name(self.name, Phrase("training runtime"))


@dataclass(frozen=True)
class Job:
    """What every target renders. Counts are per node; None: not given.

    ``entrypoint``: what starts the launcher on the nodes: ``platform-launch``, its absolute path, or
    the absolute path of start_multinode_platform.sh. ``script``, ``module`` and ``options``: of
    ``platform-launch run``; ``arguments`` follow after ``--``: a command if nothing else is named.
    ``spares``: nodes started in addition, which wait; a restart needs ``min_nodes``. ``queue``: Slurm
    partition, Volcano queue or Kueue's LocalQueue. ``retries``: how often the whole job may start again.
    ``requeue``: let Slurm start it again after its time limit or a lost node. ``notice``: seconds before
    Slurm's time limit at which the training is warned. ``grace_s``: seconds from SIGTERM to SIGKILL, more
    than the launcher's own. ``exclude``: nodes that it must not run on; ``quarantine``: file of more of
    them, where the job runs. ``ttl_s``: how long Kubernetes keeps it after its end. ``patch``: merged into
    the pod template (see ``patch.py``).

    Raises InputError for what no scheduler would accept.
    """

    name: str
    entrypoint: str = PROGRAM
    nodes: int = 1
    spares: int = 0
    min_nodes: int | None = None
    gpus_per_node: int = 8
    image: str | None = None
    namespace: str | None = None
    queue: str | None = None
    account: str | None = None
    time_limit_s: int | None = None
    cpus: int | None = None
    memory_gib: int | None = None
    shm_gib: int | None = None
    gpu_resource: str = GPU_RESOURCE
    rdma: tuple[Rdma, ...] = ()
    resources: tuple[tuple[str, str], ...] = ()
    volumes: tuple[Volume, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[SecretVariable, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    exclude: tuple[str, ...] = ()
    quarantine: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    security: str | None = None
    run_as: RunAs | None = None
    priority_class: str | None = None
    scheduler: str | None = None
    gang: str | None = None
    host_network: bool = False
    runtime: Runtime | None = None
    patch: dict[str, Any] = field(default_factory=dict, hash=False)
    ttl_s: int = _WEEK_S
    retries: int = 3
    requeue: bool = False
    notice: int | None = None
    grace_s: int = 60
    script: str | None = None
    module: str | None = None
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names.check_plain(self.name, "name")  # stricter for what is not Slurm: see render
        if self.spares and self.nodes < 2:
            raise InputError(
                Phrase(
                    "spares {spares} with {nodes} node: expected at least 2 nodes that train",
                    spares=self.spares,
                    nodes=self.nodes,
                ),
                "if the only node is lost, no node is left to continue: raise nodes, or leave out spares",
            )
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise InputError(
                Phrase(
                    "min_nodes {least} is more than nodes {nodes}", least=self.min_nodes, nodes=self.nodes
                ),
                "a job starts with all its nodes, and may continue with fewer",
            )
        self._check_entrypoint()
        self._check_placement()
        self._check_resources()
        self._check_security()
        self._check_texts()
        if self.time_limit_s is not None and self.notice is not None and self.time_limit_s <= self.notice:
            raise InputError(
                Phrase(
                    "notice {notice_s} s: expected less than the time limit, {limit_s} s",
                    notice_s=self.notice,
                    limit_s=self.time_limit_s,
                ),
                "raise time, or lower notice",
            )

    @property
    def shm(self) -> int:
        """Size of /dev/shm in GiB: as given, or half the memory, as Linux itself would make it."""
        if self.shm_gib is not None:
            return self.shm_gib
        return _DEFAULT_SHM_GIB if self.memory_gib is None else max(1, self.memory_gib // 2)

    @property
    def notice_s(self) -> int:
        """Seconds of warning before Slurm's time limit; at most half of the limit by default."""
        if self.notice is not None:
            return self.notice
        limit = self.time_limit_s
        return _DEFAULT_NOTICE_S if limit is None else min(_DEFAULT_NOTICE_S, max(1, limit // 2))

    @property
    def started(self) -> int:
        """How many nodes the scheduler starts."""
        return self.nodes + self.spares

    @property
    def may_lose(self) -> int:
        """How many of them the job can lose."""
        return self.started - (self.nodes if self.min_nodes is None else self.min_nodes)

    @property
    def names_program(self) -> bool:
        """Whether it names what to run: a script, a module, an example, or a command in its arguments."""
        if self.script is not None or self.module is not None:
            return True
        named = any(map(self.has_option, ("--script", "--module", "-m", "--example")))
        return named or (bool(self.arguments) and not self.arguments[0].startswith("-"))

    @property
    def program(self) -> tuple[str, ...]:
        """What starts the launcher: the installed program, or bash with the entrypoint of a checkout."""
        return ("/bin/bash", self.entrypoint) if self._is_shell_script else (self.entrypoint,)

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its subcommand, without options; the shell entrypoint runs ``run`` by itself."""
        return self.program if self._is_shell_script else (*self.program, "run")

    @property
    def shell_command(self) -> tuple[str, ...]:
        """The command as typed in a shell: the entrypoint of a checkout is executable."""
        return (self.entrypoint, *self.command[len(self.program) :])

    @property
    def command_arguments(self) -> tuple[str, ...]:
        """What follows the command: its options, ``--``, and the program's arguments or a command."""
        script = () if self.script is None else ("--script", self.script)
        module = () if self.module is None else ("--module", self.module)
        spares = ("--spares", str(self.spares)) if self.spares else ()
        least = () if self.min_nodes is None else ("--min-nodes", str(self.min_nodes))
        return (
            *script,
            *module,
            *self.options,
            *spares,
            *least,
            *(self.restart_option if self.may_lose or least else ()),
            *(("--", *self.arguments) if self.arguments else ()),
        )

    @property
    def restart_option(self) -> tuple[str, ...]:
        """``--max-restarts`` for as many restarts as retries, unless the options hold one.

        At least 1 if it may lose nodes: spares step in, and nodes are left out, when it starts again.
        """
        restarts = max(self.retries, 1) if self.spares or self.min_nodes else self.retries
        given = self.has_option("--max-restarts") or not restarts
        return () if given else ("--max-restarts", str(restarts))

    @property
    def quarantine_list(self) -> tuple[str, ...]:
        """The command that prints the nodes in quarantine."""
        listing = ("list", "--format=names")
        if self._is_shell_script:
            return ("env", "platform_launch_command=quarantine", *self.program, *listing)
        return (*self.program, "quarantine", *listing)

    def has_option(self, name: str) -> bool:
        """Return whether the launcher's options contain ``--name`` or ``--name=…``."""
        return any(option.split("=")[0] == name for option in self.options)

    @property
    def _is_shell_script(self) -> bool:
        return self.entrypoint.endswith(".sh")

    def _check_entrypoint(self) -> None:
        path = self.entrypoint
        if path == PROGRAM:
            return
        names.check_text(path, Phrase("entrypoint"))
        if not path.startswith("/") or not (path.endswith(".sh") or path.rpartition("/")[2] == PROGRAM):
            raise InputError(
                Phrase(
                    "entrypoint {path}: expected platform-launch, its absolute path, or the absolute path of "
                    "start_multinode_platform.sh",
                    path=shown(path),
                ),
                "the training script is not the entrypoint: name it with script"
                if path.endswith(".py")
                else "an image with the package installed has platform-launch on its PATH",
            )
        names.check_path(path, Phrase("entrypoint"))

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
        for key, value in (*self.node_selector, *self.labels):
            names.check_qualified(key, Phrase("label"))
            names.check_label_value(value, Phrase("value of label {key}", key=key))
        for key, value in self.annotations:
            names.check_qualified(key, Phrase("annotation"))
            names.check_text(value, Phrase("value of annotation {key}", key=key))
        for node in self.exclude:
            names.check_node(node)
        for name, what in (
            (self.service_account, Phrase("service account")),
            (self.priority_class, Phrase("priority class")),
            (self.scheduler, Phrase("scheduler")),
            *((name, Phrase("image pull secret")) for name in self.image_pull_secrets),
        ):
            if name is not None:
                names.check_object_name(name, what)
        if self.quarantine is not None:
            names.check_path(self.quarantine, "quarantine")

    def _check_resources(self) -> None:
        names.check_resource(self.gpu_resource, Phrase("GPU resource"))
        own = [
            self.gpu_resource,
            *(ports.resource for ports in self.rdma),
            *(name for name, _ in self.resources),
        ]
        for name in own:
            if own.count(name) > 1:
                raise InputError(
                    Phrase("resource {name} is given twice: expected once", name=name),
                    "GPUs are counted by gpus_per_node",
                )
        for name, quantity in self.resources:
            names.check_quantity(name, quantity)
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

    def _check_security(self) -> None:
        """Refuse what the PodSecurity level forbids, before the namespace rejects each pod."""
        if self.security != "restricted":
            return
        forbidden = (
            (bool(self.rdma), Phrase("rdma (IPC_LOCK)")),
            (self.host_network, Phrase("host_network")),
            (any(volume.on_node for volume in self.volumes), Phrase("a folder of the node as a volume")),
            (any(volume.nfs for volume in self.volumes), Phrase("an NFS volume")),
            (self.run_as is not None and self.run_as.user == 0, Phrase("run_as 0")),
        )
        for is_used, what in forbidden:
            if is_used:
                raise InputError(
                    Phrase("security restricted and {what}: PodSecurity restricted forbids it", what=what),
                    "leave one of them out; NFS works as a PersistentVolumeClaim",
                )

    def _check_texts(self) -> None:
        """Check environment, options and arguments: they may contain anything that a text file can hold."""
        own = [name for name, _ in self.env] + [secret.variable for secret in self.secret_env]
        for name in own:
            names.check_variable(name)
            if own.count(name) > 1:
                raise InputError(Phrase("environment variable {name} is set twice: expected once", name=name))
        for name, value in self.env:
            names.check_text(value, Phrase("environment variable {name}", name=name))
        if self.script == "":
            raise InputError("script is empty: expected the path of a file")
        if self.script is not None and self.module is not None:
            raise InputError("script and module: expected one of them", "leave one out")
        if self.module == "":
            raise InputError("module is empty: expected a name, e.g. pkg.train")
        for text in (self.script or "", self.module or "", *self.options, *self.arguments):
            names.check_text(text, Phrase("argument"))
        if "--" in self.options:
            raise InputError(
                "options contain '--': expected options of the launcher only",
                "put what follows -- into arguments",
            )
        places = [volume.place for volume in self.volumes]
        for place in places:
            if places.count(place) > 1 or place in _TAKEN:
                raise InputError(
                    Phrase(
                        "volume path {place!r} is already used: expected each path once, and none of {taken}",
                        place=place,
                        taken=joined(_TAKEN),
                    )
                )
