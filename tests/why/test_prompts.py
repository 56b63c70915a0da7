"""A prompt names the host of what a command tells of its own machine, and of nothing else."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain

LOST = "Unable to determine the device handle for GPU0000:A3:00.0: Unknown Error\n"


@pytest.mark.parametrize(
    "prompt",
    [
        "root@gn-31:~# nvidia-smi",
        "[mia@gn-31 ft]$ sudo nvidia-smi -L",
        "(base) mia@gn-31:/data/ft$ nvidia-smi",
        "mia@gn-31 ~ % nvidia-smi",
        "mia@gn-31:~/ft$ torchrun --nproc-per-node 8 ft.py",
        "root@gn-31:/ft# OMP_NUM_THREADS=2 python3 -m torch.distributed.launch --nproc_per_node=8 ft.py",
    ],
)
def test_the_host_of_a_prompt_is_that_of_its_commands_output(explain_text: Explain, prompt: str) -> None:
    assert str(explain_text(f"{prompt}\n{LOST}").where) == "host gn-31, GPU 0000:a3:00"


@pytest.mark.parametrize(
    "prompt",
    [
        "mia@login-2:~/ft$ srun -N 2 nvidia-smi",
        "mia@login-2:~/ft$ cat job.out",
        "mia@login-2:~/ft$ srun -N 2 torchrun --nproc-per-node 8 ft.py",
        "mia@login-2:~$ nvidia-smi\nmia@login-2:~$ ssh gn-31 nvidia-smi",
        "mail mia@login-2 about nvidia-smi",
    ],
)
def test_a_prompt_says_nothing_of_other_machines(explain_text: Explain, prompt: str) -> None:
    assert str(explain_text(f"{prompt}\n{LOST}").where) == "GPU 0000:a3:00"


def test_a_gpu_has_one_address_however_it_is_written(explain_text: Explain) -> None:
    verdict = explain_text(
        f"{LOST}NVRM: Xid (PCI:0000:a3:00): 79, pid=7, GPU has fallen off the bus.\n"
        "NVRM: GPU 0000:a3:00.0: GPU has fallen off the bus.\n"
    )
    assert str(verdict.where) == "GPU 0000:a3:00"
    assert not [note for note in verdict.notes if "the same" in str(note)]
