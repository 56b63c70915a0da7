"""AWS: SageMaker training jobs and Batch multi-node parallel jobs.

Sources: sagemaker-training-toolkit ENVIRONMENT_VARIABLES.md; SageMaker "How training containers run";
docs.aws.amazon.com/batch mnp-env-vars and job_env_vars.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError, shown, shown_list
from platform_launch.hostlist import parse_host, refuse_repeats
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase

_RESOURCE_FILE = "/opt/ml/input/config/resourceconfig.json"
_BATCH = "AWS_BATCH_JOB"


def _has_resource_file(environment: Environment) -> bool:
    return "TRAINING_JOB_NAME" in environment and environment.read_file(_RESOURCE_FILE) is not None


def _refine_sagemaker(reading: Reading, environment: Environment) -> None:
    """Hosts are in the platform's own order (algo-1, algo-10, algo-2 …): a name's number is not its rank."""
    config = reading.attempt("hosts", lambda: _resource_config(environment), "") or Sourced({}, "SM_HOSTS")
    reading.hosts = reading.attempt("hosts", lambda: _sagemaker_hosts(environment, config), "")
    if not reading.hosts:
        reading.missing["nnodes"] = Phrase("SM_HOSTS or {file}", file=_RESOURCE_FILE)
        return
    hosts, source = reading.hosts.value, reading.hosts.source
    reading.nnodes = Sourced(len(hosts), Phrase("hosts of {source}", source=source))
    reading.master_addr = Sourced(hosts[0], Phrase("first host of {source}", source=source))
    interface = config.value.get("network_interface_name")
    if reading.interface is None and isinstance(interface, str) and interface:
        reading.interface = Sourced(interface, config.source)
    current = config.value.get("current_host")
    own = environment.text("SM_CURRENT_HOST") or (
        Sourced(current, config.source) if isinstance(current, str) else None
    )
    if own is None:
        reading.missing["node_rank"] = "SM_CURRENT_HOST"
    elif own.value in hosts:
        reading.node_rank = Sourced(
            hosts.index(own.value), Phrase("place of {own} in {source}", own=own.value, source=source)
        )
    else:
        reading.refuse(
            "node_rank",
            Phrase(
                "{own_source}={own} is not in {source} ({hosts})",
                own_source=own.source,
                own=shown(own.value),
                source=source,
                hosts=shown_list(hosts),
            ),
        )
    _read_job_name(reading, environment)


def _resource_config(environment: Environment) -> Sourced[Mapping[str, object]] | None:
    """Return the resource configuration: the toolkit's variable, or the file every container has."""
    text = environment.text("SM_RESOURCE_CONFIG")
    if text is None:
        content = environment.read_file(_RESOURCE_FILE)
        text = Sourced(content, _RESOURCE_FILE) if content else None
    if text is None:
        return None
    config = parse_json(text)
    if not isinstance(config, dict):
        raise TopologyError(
            Phrase("{source}={text}: expected a JSON object", source=text.source, text=shown(text.value))
        )
    return Sourced(config, text.source)


def _sagemaker_hosts(
    environment: Environment, config: Sourced[Mapping[str, object]]
) -> Sourced[tuple[str, ...]] | None:
    text = environment.text("SM_HOSTS")
    source = text.source if text else config.source
    hosts = parse_json(text) if text else config.value.get("hosts")
    group = _own_group(environment, config)
    if group is not None:
        hosts, source = group.value, group.source
    if hosts is None:
        return None
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise TopologyError(
            Phrase(
                "{source}: expected a JSON list of host names, got {hosts}",
                source=source,
                hosts=shown(str(hosts)),
            )
        )
    refuse_repeats(hosts, source)
    return Sourced(tuple(parse_host(host, source) for host in hosts), source)


def _own_group(environment: Environment, config: Sourced[Mapping[str, object]]) -> Sourced[object] | None:
    """Return the hosts of this node's group in a heterogeneous cluster; None if there is one group.

    Groups have instance types of their own, such as CPU hosts that prepare data beside those that train
    (SageMaker, "Train Using a Heterogeneous Cluster").
    """
    groups = config.value.get("instance_groups")
    several = isinstance(groups, list) and len(groups) > 1
    own = environment.text("SM_CURRENT_INSTANCE_GROUP_HOSTS")
    if own is not None and (several or groups is None):
        return Sourced(parse_json(own), own.source)
    name = config.value.get("current_group_name")
    for group in groups if isinstance(groups, list) and several else ():
        if isinstance(group, dict) and group.get("instance_group_name") == name:
            return Sourced(
                group.get("hosts"), Phrase("group {name} of {source}", name=name, source=config.source)
            )
    return None


def _read_job_name(reading: Reading, environment: Environment) -> None:
    """Read the job's name from SM_TRAINING_ENV if TRAINING_JOB_NAME is not set; it is only reported."""
    text = environment.text("SM_TRAINING_ENV")
    if reading.job_id or text is None:
        return
    try:
        training = parse_json(text)
    except TopologyError:
        return
    name = training.get("job_name") if isinstance(training, dict) else None
    if isinstance(name, str) and name:
        reading.job_id = Sourced(name, text.source)


def parse_json(text: Sourced[str]) -> object:
    """Parse a variable or file that holds JSON."""
    try:
        return json.loads(text.value)
    except (ValueError, RecursionError):
        raise TopologyError(
            Phrase("{source}={text} is not JSON", source=text.source, text=shown(text.value))
        ) from None


def _refine_batch(reading: Reading, environment: Environment) -> None:
    """Rotate the indices so that the main node, which the others connect to, becomes rank 0."""
    index = reading.node_rank
    name = f"{_BATCH}_MAIN_NODE_INDEX"
    main = reading.attempt("node_rank", lambda: environment.integer(name), name)
    reading.node_rank = None
    if index and main and reading.nnodes:
        nnodes = reading.nnodes.value
        if max(index.value, main.value) >= nnodes:
            reading.refuse(
                "node_rank",
                Phrase(
                    "{index_source}={index} and {name}={main}: expected both below {nnodes_source}={nnodes}",
                    index_source=index.source,
                    index=index.value,
                    name=name,
                    main=main.value,
                    nnodes_source=reading.nnodes.source,
                    nnodes=nnodes,
                ),
            )
        rotated = "" if main.value == 0 else Phrase(" counted from {name}={main}", name=name, main=main.value)
        reading.node_rank = Sourced(
            (index.value - main.value) % nnodes,
            Phrase("{index_source}{rotated}", index_source=index.source, rotated=rotated),
        )
        if index.value == main.value:
            # Batch exports the main node's address to the others only.
            reading.master_addr = Sourced(environment.address, "this node's own address: it is the main node")
    if reading.job_id:
        reading.job_id = Sourced(reading.job_id.value.partition("#")[0], reading.job_id.source)
    if reading.restart_count:  # Batch counts attempts from 1
        reading.restart_count = Sourced(max(0, reading.restart_count.value - 1), f"{_BATCH}_ATTEMPT - 1")


SAGEMAKER = Dialect(
    name="sagemaker",
    title="AWS SageMaker training",
    marks=(("SM_HOSTS",), ("SM_CURRENT_HOST",), ("TRAINING_JOB_ARN",)),
    also=_has_resource_file,
    also_words=Phrase("TRAINING_JOB_NAME and the file {file}", file=_RESOURCE_FILE),
    nproc_per_node=("SM_NUM_GPUS", "SM_NUM_NEURONS"),
    accelerators=("SM_NUM_GPUS",),
    job_id=("TRAINING_JOB_NAME",),
    interface=("SM_NETWORK_INTERFACE_NAME",),
    refine=_refine_sagemaker,
)

AWS_BATCH = Dialect(
    name="aws_batch",
    title="AWS Batch multi-node parallel job",
    marks=((f"{_BATCH}_NUM_NODES",), (f"{_BATCH}_NODE_INDEX",), (f"{_BATCH}_MAIN_NODE_INDEX",)),
    nnodes=(f"{_BATCH}_NUM_NODES",),
    node_rank=(f"{_BATCH}_NODE_INDEX",),
    master_addr=(f"{_BATCH}_MAIN_NODE_PRIVATE_IPV4_ADDRESS",),
    nproc_per_node=("NPROC_PER_NODE",),
    job_id=(f"{_BATCH}_ID",),
    restart_count=(f"{_BATCH}_ATTEMPT",),
    refine=_refine_batch,
)
