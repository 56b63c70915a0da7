"""What the lines about a GPU's memory tell beside that it ran out."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, uncaught

NEW = "torch.OutOfMemoryError: {} out of memory. Tried to allocate {}. GPU 1 has a total capacity of {} of which {} is free."  # noqa: E501
OLD = "RuntimeError: {} out of memory. Tried to allocate {} (GPU 1; {} total capacity; 9.00 GiB already allocated; {} free; 9.50 GiB reserved in total by PyTorch)"  # noqa: E501


@pytest.mark.parametrize("form", [NEW, OLD])
@pytest.mark.parametrize(
    ("device", "asked", "capacity", "cause"),
    [
        ("CUDA", "1024.00 GiB", "79.11 GiB", "oversized_allocation"),
        ("HIP", "64.00 GiB", "63.98 GiB", "oversized_allocation"),
        ("HIP", "60.00 GiB", "63.98 GiB", "device_out_of_memory"),
        ("CUDA", "512.00 MiB", "79.11 GiB", "cuda_out_of_memory"),
        ("CUDA", "9.00 GiB", "79.11 GiB", "cuda_out_of_memory"),
        ("CUDA", "100.00 GiB", "79.11 TiB", "cuda_out_of_memory"),
    ],
)
def test_an_allocation_larger_than_the_gpu_is_no_lack_of_memory(
    explain_text: Explain, form: str, device: str, asked: str, capacity: str, cause: str
) -> None:
    verdict = explain_text(uncaught(form.format(device, asked, capacity, "5.00 GiB"), "[rank3]: "))
    assert (verdict.cause, verdict.where.rank, verdict.where.gpu) == (cause, 3, "1")
    assert verdict.fix.startswith("Use a smaller batch") == (
        cause != "oversized_allocation" and "others hold" not in verdict.details
    )


def test_every_gpu_of_a_line_that_holds_two_messages_is_named(explain_text: Explain) -> None:
    said = "HIP out of memory. Tried to allocate 1.00 GiB (GPU {}; 31.98 GiB total capacity; {} GiB already allocated; 0 bytes free; 31.80 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"  # noqa: E501
    verdict = explain_text(f"gn5: RuntimeErrorRuntimeError: : {said.format(6, 31)}{said.format(2, 30)}\n")
    assert (verdict.cause, verdict.where.host, verdict.where.gpu) == ("device_out_of_memory", "gn5", "6")
    assert verdict.details["allocated"] == "31 GiB"
    assert [str(one) for one in verdict.notes] == ["the same on GPU 2"]
    traceback = uncaught(f"RuntimeError: {said.format(6, 31)}{said.format(2, 30)}")
    assert [str(one) for one in explain_text(traceback).notes] == ["the same on GPU 2"]


def test_processes_that_the_message_lists_are_a_detail(explain_text: Explain) -> None:
    said = NEW.format("CUDA", "64.00 MiB", "23.60 GiB", "11.00 MiB")
    said += " Process 4711 has 9.50 GiB memory in use. Process 815 has 310.00 MiB memory in use."
    said += " Including non-PyTorch memory, this process has 13.70 GiB memory in use."
    verdict = explain_text(uncaught(said))
    assert verdict.details["processes"] == "4711 has 9.50 GiB, 815 has 310.00 MiB"
    assert verdict.details["used"] == "13.70 GiB"


def test_a_size_that_the_driver_could_not_tell_is_no_detail(explain_text: Explain) -> None:
    said = NEW.format("CUDA", "64.00 MiB", "23.60 GiB", "11.00 MiB")
    said += " Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use."
    assert "used" not in explain_text(uncaught(said)).details


@pytest.mark.parametrize(
    ("told", "held"),
    [
        (" Including non-PyTorch memory, this process has 8.00 GiB memory in use.", "30.8 GiB"),
        (" Including non-PyTorch memory, this process has 38.10 GiB memory in use.", ""),
        (" Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use.", ""),
        (" Of the allocated memory 7.00 GiB is allocated by PyTorch", ""),
        (
            " 7.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools, and 512.00 MiB is reserved by PyTorch but unallocated.",  # noqa: E501
            "31.3 GiB",
        ),
        ("", ""),
    ],
)
def test_what_others_hold_is_said_where_it_is_much(explain_text: Explain, told: str, held: str) -> None:
    said = NEW.format("CUDA", "64.00 MiB", "39.50 GiB", "720.00 MiB") + told
    verdict = explain_text(uncaught(said, "[rank2]: "))
    assert verdict.cause == "cuda_out_of_memory"
    assert verdict.details.get("others hold", "") == held
    begins = ("Other processes hold", "这块 GPU") if held else ("Use a smaller batch", "请减小")
    assert [
        verdict.to_do(one).startswith(begin) for one, begin in zip(("en", "zh"), begins, strict=True)
    ] == [
        True,
        True,
    ]


@pytest.mark.parametrize(("free", "held"), [("25.00 MiB", "6.0 GiB"), ("5.90 GiB", "")])
def test_what_others_hold_follows_from_what_pytorch_reserved(
    explain_text: Explain, free: str, held: str
) -> None:
    said = OLD.format("CUDA", "64.00 MiB", "15.50 GiB", free)
    assert explain_text(uncaught(said)).details.get("others hold", "") == held


_ALLOCATOR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 172.00 MiB. GPU 1 has a total capacity of "
    "39.39 GiB of which 30.06 MiB is free. Of the allocated memory 38.80 GiB is allocated by PyTorch, and "
    "100.50 KiB is reserved by PyTorch but unallocated."
)


def _raised_in(*places: str, message: str = _ALLOCATOR) -> str:
    frames = "".join(f'  File "{file}", line 7, in {function}\n' for file, function in map(str.split, places))
    return f'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n{frames}{message}\n'


_ENV = "/env/lib/python3.11/site-packages"
_MODULE = f"{_ENV}/torch/nn/modules/module.py"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (_raised_in(f"{_ENV}/transformers/modeling_utils.py from_pretrained"), "gpu_memory_of_model"),
        (
            _raised_in(f"{_MODULE} to", f"{_MODULE} _apply"),
            "gpu_memory_of_model",
        ),
        (
            _raised_in(f"{_ENV}/deepspeed/runtime/engine.py _configure_distributed_model"),
            "gpu_memory_of_model",
        ),
        (
            _raised_in(f"{_ENV}/transformers/trainer.py training_step", f"{_MODULE} to"),
            "cuda_out_of_memory",
        ),
        (_raised_in(f"{_ENV}/torch/nn/modules/linear.py forward"), "cuda_out_of_memory"),
        (_raised_in(f"{_ENV}/torch/optim/adamw.py _init_group"), "gpu_memory_of_optimizer"),
        (
            _raised_in(f"{_ENV}/torch/optim/adamw.py step", *[f"{_MODULE} forward"] * 5),
            "cuda_out_of_memory",
        ),
        (_raised_in(f"{_ENV}/torch/serialization.py restore_location"), "gpu_memory_of_checkpoint"),
        (
            _raised_in("train.py main", message="RuntimeError: CUDA error: out of memory"),
            "gpu_memory_held_at_start",
        ),
    ],
)
def test_advice_fits_to_what_was_done_as_memory_ran_out(explain_text: Explain, log: str, cause: str) -> None:
    assert explain_text(log).cause == cause


def test_where_others_hold_the_memory_what_was_done_does_not_matter(explain_text: Explain) -> None:
    held = _ALLOCATOR.replace("38.80 GiB is", "1.80 GiB is")
    log = _raised_in(f"{_ENV}/transformers/modeling_utils.py from_pretrained", message=held)
    verdict = explain_text(log)
    assert verdict.cause == "cuda_out_of_memory"
    assert verdict.fix.startswith("Other processes hold much of this GPU")


def test_ranks_that_load_a_checkpoint_onto_one_gpu(explain_text: Explain) -> None:
    held = _ALLOCATOR.replace("38.80 GiB is", "9.80 GiB is")
    verdict = explain_text(_raised_in(f"{_ENV}/torch/serialization.py persistent_load", message=held))
    assert verdict.cause == "gpu_memory_of_checkpoint"
    assert verdict.fix.startswith("Other processes hold much of this GPU, most likely")
