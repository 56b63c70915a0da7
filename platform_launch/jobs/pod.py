"""The pod all Kubernetes targets share: one node of the job."""

from __future__ import annotations

from dataclasses import dataclass

from platform_launch.errors import InputError
from platform_launch.health.quarantine import FILE_VARIABLE, NODE_NAME_VARIABLE
from platform_launch.jobs import names, patch
from platform_launch.jobs.job import SHM, Job, RunAs, Toleration, Volume
from platform_launch.jobs.manifest import Document
from platform_launch.text import Phrase
from platform_launch.topology import DEFAULT_MASTER_PORT

CONTAINER = "training"
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"

CPUS_PER_GPU = 4
MEMORY_GIB_PER_GPU = 16
"""Requested if the job sets neither: enough to feed a GPU, and a share that nodes with GPUs have."""

_UNREACHABLE_S = 120
_RESTRICTED_USER = RunAs(1000, 1000)
_WRITABLE = "/tmp"  # noqa: S108  inside the container

POD_NOTES = (
    Phrase(
        "{shm} is a memory volume, because the default of 64 MiB is too small for NCCL and data loaders.",
        shm=SHM,
    ),
    Phrase(
        "terminationGracePeriodSeconds is longer than the launcher's own grace period, so that a save can "
        "finish. If the launcher warns that saves take longer, pass the --grace-period that it names to "
        "platform-launch job, which adjusts both."
    ),
    Phrase(
        "The pod of a node that does not answer is deleted after {seconds} s. Its replacement starts when "
        "the node confirms the deletion, is deleted itself, or has the taint "
        "node.kubernetes.io/out-of-service.",
        seconds=_UNREACHABLE_S,
    ),
    Phrase("enableServiceLinks is false: a Service called master would set MASTER_PORT to tcp://…."),
    Phrase("automountServiceAccountToken is false: training does not need the cluster's API."),
)


@dataclass(frozen=True)
class Gang:
    """A scheduler that starts all pods of a group or none: its PodGroup, and how a pod joins it."""

    api: str
    scheduler: str
    label: str = ""
    annotation: str = ""


GANGS = {
    "volcano": Gang("scheduling.volcano.sh/v1beta1", "volcano", annotation="scheduling.k8s.io/group-name"),
    "scheduler-plugins": Gang(
        "scheduling.x-k8s.io/v1alpha1", "scheduler-plugins-scheduler", label="scheduling.x-k8s.io/pod-group"
    ),
}
"""``gang`` of a job → what it takes (volcano.sh/apis, sigs.k8s.io/scheduler-plugins)."""


def metadata(job: Job, *, kueue: bool = False) -> Document:
    """Return an object's metadata; ``kueue`` adds the label by which Kueue admits it.

    The queue of a job with Volcano's gang is one of Volcano's: see :func:`pod_group`.
    """
    found: Document = {"name": job.name}
    if job.namespace:
        found["namespace"] = job.namespace
    is_queued = kueue and job.queue and job.gang != "volcano"
    queue = {KUEUE_LABEL: names.check_queue(str(job.queue))} if is_queued else {}
    if labels := {**queue, **dict(job.labels)}:
        found["labels"] = labels
    if job.annotations:
        found["annotations"] = dict(job.annotations)
    return found


def pod_group(job: Job) -> list[Document]:
    """Return the PodGroup of the job's gang, none without one."""
    if job.gang is None:
        return []
    group: Document = {"minMember": job.nodes}
    if job.gang == "volcano":
        if job.queue:
            group["queue"] = names.check_queue(job.queue)
        if job.priority_class:  # that of the pods orders pods within a group only
            group["priorityClassName"] = job.priority_class
    return [{"apiVersion": GANGS[job.gang].api, "kind": "PodGroup", "metadata": metadata(job), "spec": group}]


def spare_notes(job: Job) -> tuple[Phrase, ...]:
    """Return notes for a job that may lose nodes, none otherwise."""
    if not job.may_lose:
        return ()
    spares = Phrase(
        "{pods} pods: {nodes} nodes that train and {spares} spare. The replacement of a lost pod is a spare.",
        pods=job.started,
        nodes=job.nodes,
        spares=job.spares,
    )
    fewer = Phrase(
        "If no spare is left, the job continues with the remaining nodes, at least {least}.",
        least=job.min_nodes,
    )
    return (
        Phrase("A lost pod is replaced alone, without restarting the others."),
        *((spares,) if job.spares else ()),
        *((fewer,) if job.may_lose > job.spares else ()),
    )


def master_variables(job: Job, address: str) -> list[Document]:
    """Return the variables that a plain Kubernetes controller does not set and the launcher needs."""
    return [
        {"name": "NNODES", "value": str(job.started)},
        {"name": "MASTER_ADDR", "value": address},
        {"name": "MASTER_PORT", "value": str(DEFAULT_MASTER_PORT)},
    ]


def pod_template(
    job: Job,
    *,
    variables: list[Document] | None = None,
    container: str = CONTAINER,
    restart_policy: str | None = "Never",
    subdomain: str | None = None,
    annotations: dict[str, str] | None = None,
) -> Document:
    """Return a pod template that runs the launcher, with the job's patch merged in.

    ``restart_policy`` None: the controller sets it. ``annotations``: those of the target; the job's win.
    """
    gang = GANGS[job.gang] if job.gang else Gang("", "")
    labels = {**dict(job.labels), **({gang.label: job.name} if gang.label else {})}
    joined = {gang.annotation: job.name} if gang.annotation else {}
    marks = {**(annotations or {}), **joined, **dict(job.annotations)}
    template: Document = {}
    if labels or marks:
        template["metadata"] = {
            **({"labels": labels} if labels else {}),
            **({"annotations": marks} if marks else {}),
        }
    template["spec"] = _spec(job, variables or [], container, restart_policy, subdomain, gang)
    return patch.apply(template, job.patch, container)


def container_spec(job: Job, name: str, variables: list[Document]) -> Document:
    """Return the container that runs the launcher, without what it mounts."""
    if job.image is None and job.runtime is None:
        raise InputError(
            "the job names no image: Kubernetes targets run containers", "add --image, or image:"
        )
    container: Document = {
        "name": name,
        **({"image": job.image} if job.image else {}),
        "command": [literal(word) for word in job.command],
        "args": [literal(argument) for argument in job.command_arguments],
    }
    if not container["args"]:
        del container["args"]
    if env := [*variables, *_variables(job)]:
        container["env"] = env
    if resources := _resources(job):
        container["resources"] = resources
    if security := _container_security(job):
        container["securityContext"] = security
    return container


def literal(text: str) -> str:
    """Return a text that the kubelet leaves alone: it expands ``$(NAME)`` and turns ``$$`` into ``$``."""
    return text.replace("$", "$$")


def _spec(
    job: Job,
    variables: list[Document],
    container: str,
    restart_policy: str | None,
    subdomain: str | None,
    gang: Gang,
) -> Document:
    mounted = {**container_spec(job, container, variables), "volumeMounts": _mounts(job)}
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if job.host_network else {}
    optional = {
        "restartPolicy": restart_policy,
        "subdomain": subdomain,
        **network,
        "serviceAccountName": job.service_account,
        "imagePullSecrets": [{"name": name} for name in job.image_pull_secrets],
        "priorityClassName": job.priority_class,
        "schedulerName": job.scheduler or gang.scheduler,
        "securityContext": _pod_security(job),
        "nodeSelector": dict(job.node_selector),
        "affinity": {"nodeAffinity": _not_on(job.exclude)} if job.exclude else None,
    }
    return {
        **{key: value for key, value in optional.items() if value},
        "terminationGracePeriodSeconds": job.grace_s,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "tolerations": _tolerations(job),
        "containers": [mounted],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{job.shm}Gi"}},
            *({"name": f"volume-{index}", **_source(volume)} for index, volume in enumerate(job.volumes)),
        ],
    }


def _not_on(nodes: tuple[str, ...]) -> Document:
    """Return an affinity by the node's own name, which a label need not repeat; one name for each field."""
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    terms = [{"matchFields": others}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _tolerations(job: Job) -> list[Document]:
    gone = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _UNREACHABLE_S,
        }
        for state in ("not-ready", "unreachable")
    ]
    return [*(_toleration(taint) for taint in job.tolerations), *gone]


def _toleration(taint: Toleration) -> Document:
    found: Document = {"key": taint.key, "operator": "Equal" if taint.value else "Exists"}
    if taint.value:
        found["value"] = taint.value
    return {**found, "effect": taint.effect} if taint.effect else found


def _pod_security(job: Job) -> Document:
    run_as = _run_as(job)
    found: Document = {}
    if run_as is not None:
        found = {
            "runAsUser": run_as.user,
            "runAsGroup": run_as.group,
            "fsGroup": run_as.group,
            "fsGroupChangePolicy": "OnRootMismatch",  # a large volume is not walked through at each start
        }
    if job.security:
        found |= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return found


def _container_security(job: Job) -> Document:
    if job.security:
        return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    # RDMA pins memory, which an ordinary container may not.
    return {"capabilities": {"add": ["IPC_LOCK"]}} if job.rdma else {}


def _run_as(job: Job) -> RunAs | None:
    return job.run_as or (_RESTRICTED_USER if job.security else None)


def _mounts(job: Job) -> list[Document]:
    return [
        {"name": "shm", "mountPath": SHM},
        *(
            {
                "name": f"volume-{index}",
                "mountPath": volume.path,
                **({"readOnly": True} if volume.read_only else {}),
            }
            for index, volume in enumerate(job.volumes)
        ),
    ]


def _variables(job: Job) -> list[Document]:
    given = dict(job.env)
    if _run_as(job) is not None:
        # The image has no such user: without these, caches go to / and getpass.getuser() raises KeyError.
        given = {"HOME": _WRITABLE, "USER": CONTAINER, **given}
    plain = [{"name": name, "value": literal(value)} for name, value in given.items()]
    secret = [
        {
            "name": secret.variable,
            "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}},
        }
        for secret in job.secret_env
    ]
    if job.quarantine is None:
        return plain + secret
    # A pod's own name does not tell the machine it runs on.
    machine = {"name": NODE_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return [*plain, *secret, {"name": FILE_VARIABLE, "value": literal(job.quarantine)}, machine]


def _resources(job: Job) -> Document:
    """Return limits, which Kubernetes takes for requests too, and requests for what was not given."""
    limits: Document = {}
    requests: Document = {}
    if job.gpus_per_node:
        limits[job.gpu_resource] = job.gpus_per_node
    for name, given, share in (
        ("cpu", job.cpus, job.gpus_per_node * CPUS_PER_GPU),
        (
            "memory",
            job.memory_gib and f"{job.memory_gib}Gi",
            job.gpus_per_node and f"{job.gpus_per_node * MEMORY_GIB_PER_GPU}Gi",
        ),
    ):
        if given:
            limits[name] = given
        elif share:
            requests[name] = share
    limits |= {ports.resource: ports.count for ports in job.rdma} | dict(job.resources)
    found = {"requests": requests, "limits": limits}
    return {key: value for key, value in found.items() if value}


def _source(volume: Volume) -> Document:
    if volume.on_node:
        # Directory: a path that a node lacks stops the pod with that reason, instead of an empty folder.
        return {"hostPath": {"path": volume.source, "type": "Directory"}}
    read_only = {"readOnly": True} if volume.read_only else {}
    if volume.nfs:
        server, export = volume.nfs
        return {"nfs": {"server": server, "path": export, **read_only}}
    if volume.named:
        kind, name = volume.named
        return {"secret": {"secretName": name}} if kind == "secret" else {"configMap": {"name": name}}
    return {"persistentVolumeClaim": {"claimName": volume.source, **read_only}}
