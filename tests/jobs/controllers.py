"""What each scheduler puts into the environment of node i of n, from the file it was given.

Small imitations of the controllers, written from their sources as the platforms' tests cite them. Each also
says the names under which nodes can reach each other, so that an address nobody answers to is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.jobs.manifests import documents, expand

SERVICE_HOST = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@dataclass(frozen=True)
class Node:
    """One started node: its variables, its own name, the name of node 0, what it runs."""

    variables: dict[str, str]
    hostname: str
    master: str
    argv: list[str]


def kubernetes(text: str, rank: int) -> Node:
    """kubernetes.io: Indexed Job; pod DNS needs a headless Service and the pod's subdomain."""
    service, job = documents(text)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    name = job["metadata"]["name"]
    assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", {"job-name": name})
    assert service["metadata"]["name"] == pod["subdomain"]
    assert spec["completionMode"] == "Indexed"
    assert rank < spec["parallelism"] == spec["completions"]
    injected = {"JOB_COMPLETION_INDEX": str(rank)}
    return _node(pod, injected, {}, f"{name}-{rank}", f"{name}-0.{pod['subdomain']}")


def jobset(text: str, rank: int) -> Node:
    """jobset v1alpha2: pods are ``<set>-<job>-<job index>-<pod index>.<set>``; only annotations are given."""
    (document,) = documents(text)
    name, network = document["metadata"]["name"], document["spec"]["network"]
    (replicated,) = document["spec"]["replicatedJobs"]
    assert network["enableDNSHostnames"]
    spec = replicated["template"]["spec"]
    assert (replicated["replicas"], spec["completionMode"]) == (1, "Indexed")
    assert rank < spec["parallelism"] == spec["completions"]
    prefix = "jobset.sigs.k8s.io"
    annotations = {
        f"{prefix}/jobset-name": name,
        f"{prefix}/replicatedjob-name": replicated["name"],
        f"{prefix}/job-index": "0",
        f"{prefix}/restart-attempt": "0",
    }
    hostname = f"{name}-{replicated['name']}-0"
    injected = {"JOB_COMPLETION_INDEX": str(rank)}
    pod = spec["template"]["spec"]
    return _node(pod, injected, annotations, f"{hostname}-{rank}", f"{hostname}-0.{name}")


def trainjob(text: str, rank: int) -> Node:
    """kubeflow/trainer plugins/torch: PET_* into the container called node of the trainer's job."""
    runtime, job = documents(text)
    reference, trainer, name = job["spec"]["runtimeRef"], job["spec"]["trainer"], job["metadata"]["name"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["name"] == "node"
    assert rank < trainer["numNodes"]
    assert runtime["spec"]["mlPolicy"]["torch"] == {}
    processes = trainer["numProcPerNode"]
    master = f"{name}-{replicated['name']}-0-0.{name}"
    injected = {
        "JOB_COMPLETION_INDEX": str(rank),
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(processes),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": "29500",
    }
    return _node(pod, injected, {}, f"{name}-{replicated['name']}-0-{rank}", master)


def pytorchjob(text: str, rank: int) -> Node:
    """training-operator v1.9 envvar.go: into the container called pytorch; WORLD_SIZE counts processes."""
    (document,) = documents(text)
    name, replicas = document["metadata"]["name"], document["spec"]["pytorchReplicaSpecs"]
    nodes = sum(group["replicas"] for group in replicas.values())
    assert replicas["Master"]["replicas"] == 1
    role, index = ("Master", 0) if rank == 0 else ("Worker", rank - 1)
    assert index < replicas[role]["replicas"]
    pod = replicas[role]["template"]["spec"]
    assert pod["containers"][0]["name"] == "pytorch"
    processes = document["spec"]["nprocPerNode"]
    assert isinstance(processes, str)
    master = f"{name}-master-0"
    injected = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": master,
        "MASTER_PORT": "23456",
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": "23456",
        "WORLD_SIZE": str(nodes * int(processes) if processes.isdigit() else nodes),
        "RANK": str(rank),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": processes,
        "PET_NNODES": str(nodes),
    }
    return _node(pod, injected, {}, f"{name}-{role.lower()}-{index}", master)


def leaderworkerset(text: str, rank: int) -> Node:
    """lws pod_utils.go: group 0, leader ``<set>-0``, workers ``<set>-0-<i>``."""
    (document,) = documents(text)
    name, template = document["metadata"]["name"], document["spec"]["leaderWorkerTemplate"]
    assert document["spec"]["replicas"] == 1
    assert rank < template["size"]
    master = f"{name}-0.{name}.default"
    injected = {
        "LWS_LEADER_ADDRESS": master,
        "LWS_GROUP_SIZE": str(template["size"]),
        "LWS_WORKER_INDEX": str(rank),
    }
    hostname = f"{name}-0-{rank}" if rank else f"{name}-0"
    return _node(template["workerTemplate"]["spec"], injected, {}, hostname, master)


def volcano(text: str, rank: int) -> Node:
    """volcano plugins svc, env and pytorch; RANK: master 0, worker i → i + 1."""
    (document,) = documents(text)
    name, spec = document["metadata"]["name"], document["spec"]
    options = dict(option.removeprefix("--").split("=") for option in spec["plugins"]["pytorch"])
    replicas = {task["name"]: task["replicas"] for task in spec["tasks"]}
    nodes = sum(replicas.values())
    assert spec["minAvailable"] == nodes
    role, index = (options["master"], 0) if rank == 0 else (options["worker"], rank - 1)
    assert index < replicas[role]
    hosts = {task: [f"{name}-{task}-{i}.{name}" for i in range(count)] for task, count in replicas.items()}
    injected = {"VC_TASK_INDEX": str(index), "VK_TASK_INDEX": str(index)}
    for task, names in hosts.items():
        injected |= {f"VC_{task.upper()}_HOSTS": ",".join(names), f"VC_{task.upper()}_NUM": str(len(names))}
    master = hosts[options["master"]][0]
    injected |= {"MASTER_ADDR": master, "MASTER_PORT": options["port"]}
    injected |= {"WORLD_SIZE": str(nodes), "RANK": str(rank)}
    pod = next(task for task in spec["tasks"] if task["name"] == role)["template"]["spec"]
    return _node(pod, injected, {}, f"{name}-{role}-{index}", master)


def kubebrain(text: str, rank: int) -> Node:
    """A public dump of a container's environment: MASTER_ADDR only if DISTRIBUTED_JOB asks for it."""
    (document,) = documents(text)
    worker = document["spec"]["replicaSpecs"]["Worker"]
    assert rank < worker["replicas"]
    pod = worker["template"]["spec"]
    own = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    injected = {
        "KUBEBRAIN_REPLICA": str(rank),
        "KUBEBRAIN_REPLICA_TOTAL": str(worker["replicas"]),
        "KUBEBRAIN_RJOB_NAME": "ws-example",
    }
    if own["DISTRIBUTED_JOB"] == "true":
        injected |= {"NODE_RANK": str(rank), "NODE_COUNT": str(worker["replicas"]), "MASTER_ADDR": "10.0.0.1"}
    return _node(pod, injected, {}, f"ws-example-{rank}", "10.0.0.1")


def bare_kubebrain(text: str, rank: int) -> Node:
    """Platforms that give the same file the four bare names; the port is the one in the file."""
    node = kubebrain(text, rank)
    (document,) = documents(text)
    replicas = document["spec"]["replicaSpecs"]["Worker"]["replicas"]
    kept = {name: value for name, value in node.variables.items() if "KUBEBRAIN" not in name}
    del kept["NODE_RANK"], kept["NODE_COUNT"]
    quad = {"WORLD_SIZE": str(replicas), "RANK": str(rank), "MASTER_ADDR": "jo-x-worker-0"}
    return Node({**kept, **quad}, f"jo-x-worker-{rank}", "jo-x-worker-0", node.argv)


def slurm(text: str, rank: int) -> Node:
    """sbatch(1), srun(1): the environment of the step's task on node ``rank``."""
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))
    nodes, last = int(directives["nodes"]), int(directives["nodes"])
    assert directives["ntasks-per-node"] == "1"
    assert rank < nodes
    hosts = f"gpu[01-{last:02}]" if nodes > 1 else "gpu01"
    injected = {
        "SLURM_JOB_ID": "200505",
        "SLURM_JOB_NAME": directives["job-name"],
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(nodes),
        "SLURM_NTASKS": str(nodes),
        "SLURM_TASKS_PER_NODE": f"1(x{nodes})" if nodes > 1 else "1",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank),
        "SLURM_LOCALID": "0",
    }
    if "gres" in directives:
        injected["SLURM_GPUS_ON_NODE"] = directives["gres"].removeprefix("gpu:")
    return Node(injected, f"gpu{rank + 1:02}", "gpu01", [])


def _node(
    pod: dict[str, Any], injected: dict[str, str], annotations: dict[str, str], hostname: str, master: str
) -> Node:
    """Start the pod's container as the kubelet does: variables in order, then command and args expanded."""
    (container,) = pod["containers"]
    variables = {**SERVICE_HOST, "HOSTNAME": hostname, **injected}
    for item in container.get("env", []):
        if "value" in item:
            variables[item["name"]] = expand(item["value"], variables)
        elif "fieldRef" in item["valueFrom"]:
            key = re.fullmatch(r"metadata\.annotations\['(.+)'\]", item["valueFrom"]["fieldRef"]["fieldPath"])
            assert key is not None
            variables[item["name"]] = annotations[key[1]]
        else:
            reference = item["valueFrom"]["secretKeyRef"]
            variables[item["name"]] = f"<{reference['name']}:{reference['key']}>"
    argv = [expand(text, variables) for text in [*container["command"], *container.get("args", [])]]
    return Node(variables, hostname, master, argv)


CONTROLLERS: dict[str, Callable[[str, int], Node]] = {
    "slurm": slurm,
    "kubernetes": kubernetes,
    "jobset": jobset,
    "pytorchjob": pytorchjob,
    "trainjob": trainjob,
    "leaderworkerset": leaderworkerset,
    "volcano": volcano,
    "kubebrain": kubebrain,
}
