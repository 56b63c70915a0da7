"""The model: published shapes, causality, and the same numbers as the architecture written plainly."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from taehv_trainer.architecture import ARCHITECTURES
from taehv_trainer.blocks import MemBlock, layout
from taehv_trainer.errors import TrainingError
from taehv_trainer.model import TAEHV
from taehv_trainer.weights import load_model, load_weights

EAGER = Path(__file__).resolve().parents[2] / "benchmarks" / "taehv_eager.py"


def plain_model() -> nn.Module:
    """Return the straightforward implementation that the benchmark compares with."""
    spec = importlib.util.spec_from_file_location("taehv_eager", EAGER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.EagerTAEHV()
    return model


def busy(model: TAEHV) -> TAEHV:
    """Give MemBlocks, which start as their skips, something to do."""
    for module in model.modules():
        if isinstance(module, MemBlock):
            last = module.conv[4]
            assert isinstance(last, nn.Conv2d)
            nn.init.kaiming_normal_(last.weight)
    return model.eval()


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_full_has_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        assert n_parameters(TAEHV(ARCHITECTURES["full"])) == 11_315_539


def test_small_fits_a_cpu() -> None:
    assert n_parameters(TAEHV(ARCHITECTURES["small"])) == 264_891


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("encoder.0.weight", (64, 3, 3, 3)),
        ("encoder.2.conv.weight", (64, 128, 1, 1)),
        ("encoder.3.weight", (64, 64, 3, 3)),
        ("encoder.4.conv.0.weight", (64, 128, 3, 3)),
        ("encoder.12.conv.weight", (64, 64, 1, 1)),
        ("encoder.17.bias", (16,)),
        ("decoder.1.weight", (256, 16, 3, 3)),
        ("decoder.5.conv.4.bias", (256,)),
        ("decoder.7.conv.weight", (256, 256, 1, 1)),
        ("decoder.8.weight", (128, 256, 3, 3)),
        ("decoder.13.conv.weight", (256, 128, 1, 1)),
        ("decoder.19.conv.weight", (128, 64, 1, 1)),
        ("decoder.22.weight", (3, 64, 3, 3)),
    ],
)
def test_names_and_shapes_are_those_of_published_weights(name: str, shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        assert TAEHV(ARCHITECTURES["full"]).state_dict()[name].shape == shape


def test_published_layers_that_grow_unused_frames_load_their_last_one(tmp_path: Path) -> None:
    model = TAEHV(ARCHITECTURES["full"])
    state = model.state_dict()
    wide = torch.randn(512, 256, 1, 1)
    torch.save({**state, "decoder.7.conv.weight": wide}, tmp_path / "published.pth")
    load_weights(model, tmp_path / "published.pth")
    assert torch.equal(model.state_dict()["decoder.7.conv.weight"], wide[256:])


def test_weights_of_another_size_are_refused_by_what_differs(tmp_path: Path) -> None:
    torch.save(TAEHV(ARCHITECTURES["small"]).state_dict(), tmp_path / "small.pth")
    with pytest.raises(TrainingError, match="it has encoder_width 24 instead of 64") as refusal:
        load_weights(TAEHV(ARCHITECTURES["full"]), tmp_path / "small.pth")
    assert refusal.value.hint == "pass --model small"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_tells_which_shape_it_has(name: str, tmp_path: Path) -> None:
    model = TAEHV(ARCHITECTURES[name])
    torch.save(model.state_dict(), tmp_path / "published.pth")
    found = load_model(tmp_path / "published.pth")
    assert found.architecture == model.architecture
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("name", ["taew2_2_super.pth", "taeltx2_3_wide.pth"])
def test_a_published_variant_with_other_layers_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    state = TAEHV(ARCHITECTURES["small"]).state_dict()
    state["decoder.3.mixer.weight"] = torch.zeros(8, 1, 7, 7)
    torch.save(state, tmp_path / name)
    with pytest.raises(
        TrainingError, match=f"published '{name[:-4].rpartition('_')[2]}' variants"
    ) as refusal:
        load_model(tmp_path / name)
    assert "taehv1_5" in refusal.value.hint


def test_a_taeh3_is_refused_because_it_encodes_in_chunks(tmp_path: Path) -> None:
    torch.save(TAEHV(ARCHITECTURES["small"]).state_dict(), tmp_path / "taeh3.pth")
    with pytest.raises(TrainingError, match="in chunks of 17 frames"):
        load_model(tmp_path / "taeh3.pth")


def test_a_file_with_code_in_it_is_refused_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "touched",))  # type: ignore[return-value]

    torch.save({"encoder.0.weight": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(TrainingError, match="is not a state dict"):
        load_model(tmp_path / "trap.pth")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(("name", "latents", "frames"), [("taew2_2", 4, 13), ("taeltx", 2, 9)])
def test_variants_with_patches_and_other_time_factors_reconstruct(
    name: str, latents: int, frames: int
) -> None:
    architecture = ARCHITECTURES[name]
    encoded, reconstruction = TAEHV(architecture)(torch.rand(1, 16, 3, 32, 64))
    size = (32 // architecture.space_factor, 64 // architecture.space_factor)
    assert encoded.shape == (1, latents, architecture.latent_channels, *size)
    assert reconstruction.shape == (1, frames, 3, 32, 64)


def test_a_number_of_frames_that_is_no_multiple_is_filled_with_the_last_frame() -> None:
    model = busy(TAEHV(ARCHITECTURES["small"]))
    videos = torch.rand(2, 10, 3, 16, 16)
    filled = torch.cat([videos, videos[:, -1:], videos[:, -1:]], 1)
    with torch.no_grad():
        torch.testing.assert_close(model.encode(videos), model.encode(filled))


def test_latents_are_8x8_times_4_smaller_and_three_frames_are_trimmed() -> None:
    latents, reconstruction = TAEHV(ARCHITECTURES["small"])(torch.rand(2, 12, 3, 32, 48))
    assert latents.shape == (2, 3, 16, 4, 6)
    assert reconstruction.shape == (2, 9, 3, 32, 48)


@pytest.mark.parametrize("channels_last", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_full_computes_what_the_plain_architecture_computes(channels_last: bool) -> None:
    torch.manual_seed(0)
    ours = busy(TAEHV(ARCHITECTURES["full"], channels_last=channels_last)).double()
    plain = plain_model().double()
    plain.load_state_dict(ours.state_dict())
    videos = torch.rand(2, 8, 3, 16, 24, dtype=torch.float64)
    outputs: list[Tensor] = []
    for model in (ours, plain):
        latents, reconstruction = model(videos)
        (latents.square().mean() + (reconstruction - videos[:, :-3]).abs().mean()).backward()
        outputs += [latents, reconstruction]
    torch.testing.assert_close(outputs[0], outputs[2])
    torch.testing.assert_close(outputs[1], outputs[3])
    for (name, one), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, msg=name)


def test_channels_last_stays_so_through_the_whole_model() -> None:
    model = busy(TAEHV(ARCHITECTURES["small"], channels_last=True))
    turned: list[str] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if layout(output) != torch.channels_last:
            turned.append(type(module).__name__)

    for module in model.modules():
        if isinstance(module, MemBlock | nn.ReLU):
            module.register_forward_hook(watch)
    model(torch.rand(2, 8, 3, 16, 16))
    assert turned == []


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of dynamo's own ways
def test_compiling_changes_no_number() -> None:
    torch.manual_seed(0)
    model = busy(TAEHV(ARCHITECTURES["small"]))
    videos = torch.rand(1, 8, 3, 16, 16)
    gradients = []
    # aot_eager traces forward and backward as inductor does, and needs no compiler.
    for run in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        run(videos)[1].square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_activation_checkpointing_changes_no_gradient() -> None:
    torch.manual_seed(0)
    model = busy(TAEHV(ARCHITECTURES["small"]))
    videos = torch.rand(1, 8, 3, 16, 16)
    gradients = []
    for model.activation_checkpointing in (False, True):
        model.zero_grad()
        model(videos)[1].square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_memblock_sees_the_previous_frame_and_no_later_one() -> None:
    block = MemBlock(4, 4)
    x = torch.randn(3, 4, 5, 5, requires_grad=True)  # three frames of one video
    block(x, 1)[1].sum().backward()
    assert x.grad is not None
    assert x.grad[0].abs().sum() > 0
    assert x.grad[1].abs().sum() > 0
    assert x.grad[2].abs().sum() == 0


def test_later_frames_change_no_earlier_latent() -> None:
    model = busy(TAEHV(ARCHITECTURES["small"]))
    videos = torch.rand(1, 12, 3, 16, 16)
    changed = videos.clone()
    changed[:, 8:] = 0
    with torch.no_grad():
        one, other = model.encode(videos), model.encode(changed)
    assert torch.equal(one[:, :2], other[:, :2])
    assert not torch.equal(one[:, 2], other[:, 2])


def test_videos_of_one_batch_do_not_mix() -> None:
    model = busy(TAEHV(ARCHITECTURES["small"])).double()
    videos = torch.rand(3, 8, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        together = model(videos)[1]
        apart = torch.cat([model(video[None])[1] for video in videos])
    torch.testing.assert_close(together, apart)


def test_streaming_one_latent_at_a_time_gives_the_frames_of_the_whole() -> None:
    model = busy(TAEHV(ARCHITECTURES["small"])).double()
    latents = torch.randn(1, 4, 16, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        whole = model.decode(latents)
        for n in range(1, 5):
            torch.testing.assert_close(model.decode(latents[:, :n]), whole[:, : 4 * n - 3])
