"""The pod all Kubernetes targets share: one node of the job."""

from __future__ import annotations

from platform_launch.errors import InputError
from platform_launch.health.quarantine import FILE_VARIABLE, NODE_NAME_VARIABLE
from platform_launch.jobs import names
from platform_launch.jobs.job import GPU_RESOURCE, SHM, Job, Volume
from platform_launch.jobs.manifest import Document
from platform_launch.topology import DEFAULT_MASTER_PORT

CONTAINER = "training"
HOSTNAME_LABEL = "kubernetes.io/hostname"
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"

POD_NOTES = """\
- /dev/shm is a memory volume: a runtime's 64 MiB are too few for NCCL and data loaders.
- terminationGracePeriodSeconds exceeds the launcher's own grace period, so that the training
  can save before the kubelet kills.
- enableServiceLinks is off: a Service called master would fill MASTER_PORT with tcp://….
- automountServiceAccountToken is off: a training has no business with the cluster's API.
"""


def metadata(job: Job, *, kueue: bool = False) -> Document:
    """Return an object's metadata; ``kueue`` adds the label by which Kueue admits it."""
    found: Document = {"name": job.name}
    if job.namespace:
        found["namespace"] = job.namespace
    if kueue and job.queue:
        found["labels"] = {KUEUE_LABEL: names.check_queue(job.queue)}
    return found


def spare_notes(job: Job) -> str:
    """Return what to know of spares, empty where there are none."""
    if not job.spares:
        return ""
    return (
        f"- {job.started} pods: {job.nodes} nodes that train, and {job.spares} spare. A pod that is lost is\n"
        "  started again by itself, not the others with it, and comes back as a spare.\n"
    )


def master_variables(job: Job, address: str) -> list[Document]:
    """Return the variables that a plain Kubernetes controller does not set and the launcher needs."""
    return [
        {"name": "NNODES", "value": str(job.started)},
        {"name": "MASTER_ADDR", "value": address},
        {"name": "MASTER_PORT", "value": str(DEFAULT_MASTER_PORT)},
    ]


def pod_spec(
    job: Job,
    *,
    variables: list[Document] | None = None,
    container: str = CONTAINER,
    restart_policy: str | None = "Never",
    subdomain: str | None = None,
) -> Document:
    """Return a PodSpec that runs the entrypoint. ``restart_policy`` None: the controller sets it."""
    if job.image is None:
        raise InputError(
            "the job names no image: Kubernetes targets run containers", "add --image, or image:"
        )
    spec: Document = {"restartPolicy": restart_policy} if restart_policy else {}
    if subdomain:
        spec["subdomain"] = subdomain
    spec["terminationGracePeriodSeconds"] = job.grace_s
    spec["enableServiceLinks"] = False
    spec["automountServiceAccountToken"] = False
    if job.node_selector:
        spec["nodeSelector"] = dict(job.node_selector)
    if job.exclude:
        spec["affinity"] = {"nodeAffinity": _not_on(job.exclude)}
    if job.tolerations:
        spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in job.tolerations]
    spec["containers"] = [_container(job, container, variables or [])]
    spec["volumes"] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{job.shm}Gi"}},
        *({"name": f"volume-{index}", **_source(volume)} for index, volume in enumerate(job.volumes)),
    ]
    return spec


def _not_on(nodes: tuple[str, ...]) -> Document:
    elsewhere = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": list(nodes)}
    terms = [{"matchExpressions": [elsewhere]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _container(job: Job, name: str, variables: list[Document]) -> Document:
    container: Document = {
        "name": name,
        "image": job.image,
        "command": ["/bin/bash", literal(job.entrypoint)],
        "args": [literal(argument) for argument in job.command_arguments],
    }
    env = [*variables, *_variables(job)]
    if env:
        container["env"] = env
    limits = _limits(job)
    if limits:
        container["resources"] = {"limits": limits}
    if job.rdma:
        # RDMA pins memory, which an ordinary container may not.
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    container["volumeMounts"] = [
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
    if not container["args"]:
        del container["args"]
    return container


def literal(text: str) -> str:
    """Return a text that the kubelet leaves alone: it expands ``$(NAME)`` and turns ``$$`` into ``$``."""
    return text.replace("$", "$$")


def _variables(job: Job) -> list[Document]:
    plain = [{"name": name, "value": literal(value)} for name, value in job.env]
    secret = [
        {
            "name": secret.variable,
            "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}},
        }
        for secret in job.secret_env
    ]
    if job.quarantine is None:
        return plain + secret
    # A pod's own name says nothing of the machine it runs on.
    machine = {"name": NODE_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return [*plain, *secret, {"name": FILE_VARIABLE, "value": literal(job.quarantine)}, machine]


def _limits(job: Job) -> Document:
    """Return resource limits; Kubernetes takes them for the requests too."""
    limits: Document = {}
    if job.gpus_per_node:
        limits[GPU_RESOURCE] = job.gpus_per_node
    if job.cpus is not None:
        limits["cpu"] = job.cpus
    if job.memory_gib is not None:
        limits["memory"] = f"{job.memory_gib}Gi"
    if job.rdma:
        limits[job.rdma.resource] = job.rdma.count
    return limits


def _source(volume: Volume) -> Document:
    if volume.on_node:
        # Directory: a path that a node lacks stops the pod with that reason, instead of an empty folder.
        return {"hostPath": {"path": volume.source, "type": "Directory"}}
    claim: Document = {"claimName": volume.source}
    if volume.read_only:
        claim["readOnly"] = True
    return {"persistentVolumeClaim": claim}
