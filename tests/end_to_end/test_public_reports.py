"""Launches as people reported them publicly: each row names its report, and what is printed today.

Rows are for other launchers, yaml keys, platforms and proxies than the usual ones. What a plan cannot show is
tested elsewhere, with its source: exit codes, and tools that start torchrun themselves, in test_forms.py;
MIG in tests/plan/test_accelerators.py; caches in tests/hardware/test_host.py; a node's own name in
tests/doctor/test_checks.py; jobs that share hosts in tests/rendezvous/test_two_jobs_on_hosts.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab.in_process import run_in_process

TWO_NODES = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "31500"}
PLAN = ("run", "--print-env", "--format", "shell")
TORCHRUN = (*PLAN, "--launcher", "torchrun", "--script", "train.py")
YAML = (*PLAN, "--assume-gpus", "8xH100", "--script", "train.py", "--deepspeed-config", "a.yaml")
SAGEMAKER = {
    "TRAINING_JOB_NAME": "d",
    "SM_CURRENT_HOST": "algo-4",
    "SM_HOSTS": '["algo-1","algo-2","algo-3","algo-4"]',
    "SM_NUM_GPUS": "1",
}
GROUPS = (
    '{"current_group_name":"group_1","current_host":"algo-4","hosts":["algo-1","algo-2","algo-3","algo-4"],'
    '"instance_groups":[{"instance_group_name":"group_1","hosts":["algo-2","algo-4"]},'
    '{"instance_group_name":"group_2","hosts":["algo-1","algo-3"]}],"network_interface_name":"eth0"}'
)


def slurm_step(hosts: str, nodes: int) -> dict[str, str]:
    """Return the variables of a step on its first node, with one task per node."""
    count = str(nodes)
    return {
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), hosts),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NUM_NODES"), count),
        **dict.fromkeys(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), count),
        **dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_STEP_ID"), "0"),
        "SLURM_JOB_ID": "8414",
        "SLURMD_NODENAME": "gn1",
    }


MULTI_GPU = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n"


@dataclass(frozen=True)
class Report:
    """A launch: its files, variables and command line; regular expressions that its output has, or not."""

    source: str
    arguments: Sequence[str]
    shows: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    hides: Sequence[str] = ()
    code: int = 0


REPORTS = {
    # Modules (cases/module.sh)
    "a script of a package is run by its path": Report(
        "github.com/microsoft/project-azua/issues/8",
        (*PLAN, "--launcher", "torchrun", "--script", "azua/run_experiment.py"),
        (
            r"'from \. import models as amodels': only modules",
            r"pass --module azua\.run_experiment, and start in ",
        ),
        files={
            "azua/__init__.py": "",
            "azua/run_experiment.py": "import sys\n\nfrom . import models as amodels\n",
        },
        code=66,
    ),
    "the module of an application without __init__.py": Report(
        "github.com/cubist38/mlx-openai-server/issues/93",
        (*PLAN, "--launcher", "torchrun", "--script", "app/main.py"),
        (r"pass --module app\.main, and start in ",),
        files={"app/main.py": "from .config import Config\n"},
        code=66,
    ),
    "the same module by its name": Report(
        "github.com/cubist38/mlx-openai-server/issues/93",
        (*PLAN, "--launcher", "torchrun", "--module", "app.main"),
        (r"-m app\.main$",),
        files={"app/main.py": "from .config import Config\n"},
    ),
    "a script that sets its package": Report(
        "github.com/microsoft/project-azua/issues/8",
        (*PLAN, "--launcher", "torchrun", "--script", "azua/run_experiment.py"),
        (r"azua/run_experiment\.py$",),
        files={"azua/run_experiment.py": "__package__ = 'azua'\nfrom . import models\n"},
    ),
    "a script that tries both ways": Report(
        "github.com/microsoft/project-azua/issues/8",
        (*PLAN, "--launcher", "torchrun", "--script", "train.py"),
        (r"train\.py$",),
        files={"train.py": "try:\n    from .a import b\nexcept ImportError:\n    from a import b\n"},
    ),
    # Commands (cases/console-command.sh)
    "xtuner reads PORT and ADDR": Report(
        "github.com/InternLM/xtuner/issues/366",
        (*PLAN, "--nproc-per-node", "8", "--", "sh", "-c", "xtuner train x.py"),
        ("^export ADDR=10.0.0.1$", "^export PORT=31500$", "^export NNODES=2$", "^export NODE_RANK=1$"),
        env=TWO_NODES,
    ),
    "a platform's own PORT is left alone": Report(
        "github.com/InternLM/xtuner/issues/366",
        (*PLAN, "--", "sh", "-c", "xtuner train x.py"),
        ("^export ADDR=10.0.0.1$",),
        env={**TWO_NODES, "PORT": "8080"},
        hides=("^export PORT=",),
    ),
    "ms-swift reads torchrun's names": Report(
        "github.com/modelscope/ms-swift/issues/4291",
        (*PLAN, "--nproc-per-node", "8", "--", "sh", "-c", "swift sft --deepspeed zero2"),
        (
            *("^export NNODES=2$", "^export NODE_RANK=1$", "^export NPROC_PER_NODE=8$"),
            *("^export MASTER_ADDR=10.0.0.1$", "^export MASTER_PORT=31500$"),
        ),
        env=TWO_NODES,
    ),
    "trl and axolotl call accelerate, whose torchrun reads PET_": Report(
        "github.com/huggingface/trl/pull/3409",
        (*PLAN, "--nproc-per-node", "8", "--", "sh", "-c", "trl sft --config x.yaml"),
        (
            *("^export PET_NNODES=2$", "^export PET_NODE_RANK=1$", "^export PET_NPROC_PER_NODE=8$"),
            *("^export PET_MASTER_ADDR=10.0.0.1$", "^export PET_MASTER_PORT=31500$"),
        ),
        env=TWO_NODES,
    ),
    "each node would start accelerate's whole job": Report(
        "github.com/axolotl-ai-cloud/axolotl/pull/2304",
        (*PLAN, "--", "python3", "-m", "accelerate.commands.launch", "-m", "axolotl.cli.train", "x.yaml"),
        (r"accelerate\.commands\.launch would start on each of 2 nodes", "leave `accelerate launch` out"),
        env=TWO_NODES,
        code=64,
    ),
    # Accelerate's yaml (cases/yaml-one-process.sh, yaml-unknown-key.sh)
    "accelerate config counts one process for two machines": Report(
        "github.com/huggingface/accelerate/issues/2818",
        YAML,
        ("--num_machines 2", "--num_processes 16", "--machine_rank 1", r"num_processes 1 is not used: 16"),
        env=TWO_NODES,
        files={
            "a.yaml": f"{MULTI_GPU}num_machines: 2\nnum_processes: 1\nmachine_rank: 0\n"
            "main_process_ip: 10.9.9.9\nmain_process_port: 6000\n"
            "rdzv_backend: c10d\nsame_network: false\ngpu_ids: all\n"
        },
    ),
    "the port and the address of a yaml are swapped": Report(
        "github.com/huggingface/accelerate/issues/49",
        YAML,
        ("--main_process_ip 10.0.0.1", "--main_process_port 31500", "--num_processes 16"),
        env=TWO_NODES,
        files={"a.yaml": f"{MULTI_GPU}main_process_ip: 2333\nmain_process_port: null\nnum_processes: 6\n"},
    ),
    "the yaml of one GPU on eight": Report(
        "github.com/huggingface/accelerate/issues/1217",
        YAML,
        (r"distributed_type NO starts one process regardless of num_processes, but 8 are planned",),
        files={"a.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\n"},
        code=66,
    ),
    "a yaml that submits to SageMaker": Report(
        "github.com/huggingface/accelerate/issues/3463",
        YAML,
        ("compute_environment AMAZON_SAGEMAKER submits a job instead of training",),
        files={
            "a.yaml": "base_job_name: a\ncompute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n"
            "ec2_instance_type: ml.g5.xlarge\nnum_machines: 1\n"
        },
        code=66,
    ),
    "keys of an old accelerate are still known": Report(
        "github.com/gemlab-vt/NoiseCLR/issues/2",
        YAML,
        ("--num_processes 8",),
        files={
            "a.yaml": f"{MULTI_GPU}command_file: null\ncommands: null\ntpu_name: null\ntpu_zone: null\n"
            "deepspeed_config: {}\nfsdp_config: {}\nmegatron_lm_config: {}\n"
        },
    ),
    "a key of TrainingArguments in the yaml": Report(
        "github.com/zai-org/CogVideo/issues/502",
        YAML,
        ("does not know, and refuses: gradient_checkpointing, lr_scheduler",),
        files={"a.yaml": f"{MULTI_GPU}lr_scheduler: cosine\ngradient_checkpointing: true\n"},
        code=66,
    ),
    "settings of DeepSpeed twice": Report(
        "github.com/yuvalkirstain/PickScore/issues/2",
        YAML,
        ("sets both gradient_clipping, mixed_precision and deepspeed_config_file",),
        files={
            "a.yaml": "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n"
            "  deepspeed_config_file: ds.json\n  gradient_clipping: 1.0\n",
            "ds.json": "{}",
        },
        code=66,
    ),
    # WORLD_SIZE and its like
    "Kubeflow counts nodes": Report(
        "github.com/kubeflow/trainer/issues/1790",
        (*TORCHRUN, "--assume-gpus", "4"),
        ("--nnodes 2 --nproc-per-node 4 --node-rank 1",),
        env=TWO_NODES,
    ),
    "NODE_COUNT instead of WORLD_SIZE": Report(
        "github.com/oracle/accelerated-data-science/pull/631",
        (*TORCHRUN, "--assume-gpus", "4"),
        ("--nnodes 2 --nproc-per-node 4 --node-rank 1",),
        env={"NODE_COUNT": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"},
    ),
    # Ports (cases/slurm-steps-one-node.sh, two-jobs-one-node.sh)
    "two Slurm jobs on one machine": Report(
        "github.com/catalyst-team/catalyst/pull/716",
        ("run", "--print-env", "--launcher", "torchrun", "--script", "train.py"),
        (r"master port +\d+ +a free port: there is only one node",),
        env=slurm_step("gn1", 1),
    ),
    "a port from the job id is below the ephemeral ones": Report(
        "github.com/NVIDIA/enroot/issues/243",
        TORCHRUN,
        (r"--nnodes 2 .* --master-port 12828 ",),
        env=slurm_step("gn[1-2]", 2),
    ),
    # SageMaker's groups (cases/sagemaker-groups.sh)
    "node 0 of the GPU group is not algo-1": Report(
        "github.com/aws/sagemaker-pytorch-training-toolkit/pull/238",
        ("topology",),
        ("^nodes +2 ", "^node rank +1 ", "^master address +algo-2 "),
        env={**SAGEMAKER, "SM_RESOURCE_CONFIG": GROUPS},
    ),
    "a host of the CPU group": Report(
        "github.com/aws/sagemaker-python-sdk/issues/5225",
        ("topology",),
        ("^nodes +2 ", "^node rank +1 ", "^master address +algo-1 "),
        env={
            **SAGEMAKER,
            "SM_CURRENT_HOST": "algo-3",
            "SM_RESOURCE_CONFIG": GROUPS.replace(
                'name":"group_1","current_host":"algo-4', 'name":"group_2","current_host":"algo-3'
            ),
        },
    ),
    # Proxies
    "https_proxy, with the nodes by their names": Report(
        "github.com/intel/BigDL/pull/2977",
        TORCHRUN,
        (
            "^export NO_PROXY=localhost,127.0.0.1,job-worker-0$",
            "^export no_proxy=localhost,127.0.0.1,job-worker-0$",
        ),
        env={**TWO_NODES, "MASTER_ADDR": "job-worker-0", "https_proxy": "http://10.1.1.1:3128"},
    ),
    "a proxy of the scheme https, for processes on one machine": Report(
        "github.com/tensorflow/tensorflow/issues/24887",
        TORCHRUN,
        ("^export no_proxy=localhost,127.0.0.1$",),
        env={"HTTPS_PROXY": "https://proxy:443"},
    ),
    # Istio (cases/istio.sh)
    "Istio in the pods of a plain Job": Report(
        "github.com/rancher/docs/pull/2537",
        (
            *(
                "job",
                "kubernetes",
                "--nodes",
                "2",
                "--gpus-per-node",
                "8",
                "--name",
                "demo",
                "--image",
                "i:1",
            ),
            *("--annotation", "sidecar.istio.io/inject=false", "--script", "/w/t.py"),
        ),
        (r"(?s)template:.*annotations:\n +sidecar\.istio\.io/inject: 'false'",),
    ),
    "Istio in the pods of a PyTorchJob": Report(
        "github.com/kubeflow/trainer/issues/1637",
        (
            *(
                "job",
                "pytorchjob",
                "--nodes",
                "2",
                "--gpus-per-node",
                "8",
                "--name",
                "demo",
                "--image",
                "i:1",
            ),
            *("--script", "/w/t.py"),
        ),
        (r"(?s)Master:.*inject: 'false'.*Worker:.*inject: 'false'",),
    ),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
def test_a_reported_launch_is_planned_or_refused_as_it_should(report: Report, tmp_path: Path) -> None:
    for name, text in {"train.py": "print(1)\n", **report.files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **report.env}
    done = run_in_process(report.arguments, env, tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == report.code, output
    for text in report.shows:
        assert re.search(text, output, re.MULTILINE), f"{report.source}: no {text} in:\n{output}"
    for text in report.hides:
        assert not re.search(text, output, re.MULTILINE), f"{report.source}: {text} in:\n{output}"
