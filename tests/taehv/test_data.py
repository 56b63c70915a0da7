"""Data: every process its own clips, the same ones each time, and broken files counted instead of hidden."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from taehv_trainer import clips
from taehv_trainer.clips import Clip, ClipDataset, ClipStream, load_batches
from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError
from taehv_trainer.sources import SAMPLE, Source, find_sources
from taehv_trainer.split import Split
from taehv_trainer.video import UnreadableVideoError, read_frames, read_index
from tests.taehv.conftest import MakeVideo


def small_config(**changes: object) -> TrainConfig:
    values: dict[str, object] = {
        "height": 32,
        "width": 32,
        "num_frames": 4,
        "holdout_fraction": 0.4,
        "clips_per_video": 8,
        "validation_clips": 4,
    }
    return TrainConfig(**{**values, **changes})  # type: ignore[arg-type]


def level(clip: Clip, frame: int = 0) -> float:
    """Return the grey level of a frame, which says which frame of its video it is."""
    return float(clip.frames[frame].float().mean())


def first_frame(clip: Clip) -> int:
    return round((level(clip) - 8) / 4)


def drawn(process: int, n_processes: int, n_batches: int, reads_seen: int = 0) -> list[tuple[int, int]]:
    stream = ClipStream(24, 3, 7, process=process, n_processes=n_processes, reads_seen=reads_seen)
    return [key for batch in islice(stream, n_batches) for key in batch]


def test_processes_share_no_clip_and_together_see_each_once_an_epoch() -> None:
    keys = [key for process in range(4) for key in drawn(process, 4, 2)]
    assert sorted(keys) == [(0, index) for index in range(24)]


def test_epochs_that_end_within_a_batch_lose_and_repeat_nothing() -> None:
    keys = [key for process in range(5) for key in drawn(process, 5, 16)]  # 240 clips, 10 epochs
    assert sorted(keys) == [(epoch, index) for epoch in range(10) for index in range(24)]


def test_the_order_is_the_same_each_time_and_differs_between_epochs() -> None:
    keys = drawn(0, 1, 16)
    assert keys == drawn(0, 1, 16)
    assert [index for _, index in keys[:24]] != [index for _, index in keys[24:]]


def test_going_on_after_some_clips_gives_what_would_have_come() -> None:
    assert drawn(1, 2, 5, reads_seen=3 * 2 * 4) == drawn(1, 2, 9)[3 * 4 :]


def test_an_epoch_that_goes_on_with_fewer_processes_loses_and_repeats_nothing() -> None:
    by_four = [key for process in range(4) for key in drawn(process, 4, 1)]
    by_two = [key for process in range(2) for key in drawn(process, 2, 2, reads_seen=len(by_four))]
    assert sorted(by_four + by_two) == [(0, index) for index in range(24)]


def test_clips_of_a_video_lie_in_different_places_and_leave_out_its_end(make_video: MakeVideo) -> None:
    config = small_config(clips_per_video=21)  # 24 frames to train on: 21 starts
    dataset = ClipDataset([Source(make_video("a.mp4", 40))], config)
    starts = [first_frame(dataset[0, index][0]) for index in range(len(dataset))]
    assert starts == list(range(21))


def test_validation_takes_only_frames_that_training_never_sees(make_video: MakeVideo) -> None:
    dataset = ClipDataset([Source(make_video("a.mp4", 40))], small_config())
    starts = [first_frame(dataset.validation_clip(number)) for number in range(4)]
    assert min(starts) >= 24
    assert len(set(starts)) == 4


def test_validation_takes_the_ends_of_all_videos_where_all_are_divided(make_video: MakeVideo) -> None:
    sources = [Source(make_video(f"{n}.mp4", 40 + 4 * n), name=f"{n}.mp4") for n in range(4)]
    dataset = ClipDataset(sources, small_config())
    starts = [first_frame(dataset.validation_clip(number)) for number in range(4)]
    assert starts == [24, 28, 36, 43]  # where frames are held out from, and a bit further in each


def test_a_clip_depends_on_seed_epoch_and_index_alone() -> None:
    config = small_config(clips_per_video=4)
    one, other = ClipDataset([Source(SAMPLE)], config), ClipDataset([Source(SAMPLE)], config)
    other[0, 3]
    assert torch.equal(one[2, 1][0].frames, other[2, 1][0].frames)
    assert not torch.equal(one[2, 1][0].frames, one[3, 1][0].frames)


def test_seeking_in_a_long_video_finds_the_frames_that_decoding_it_all_finds(make_video: MakeVideo) -> None:
    source = [Source(make_video("a.mp4", 60))]
    decoded = ClipDataset(source, small_config())
    sought = ClipDataset(source, small_config(cache_mib=0))
    for index in range(8):
        assert torch.equal(decoded[0, index][0].frames, sought[0, index][0].frames)


def test_frames_are_scaled_to_cover_and_cropped(make_video: MakeVideo) -> None:
    for height, width in ((20, 100), (100, 20)):
        video = make_video(f"{height}.mp4", 40, height=height, width=width)
        clip = ClipDataset([Source(video)], small_config())[0, 0][0]
        assert clip.frames.shape == (4, 3, 32, 32)


def test_loader_workers_deliver_what_the_process_itself_would(make_video: MakeVideo) -> None:
    batches = []
    for num_workers in (0, 2):
        config = small_config(num_workers=num_workers)
        dataset = ClipDataset([Source(make_video(f"{num_workers}.mp4"))], config)
        stream = ClipStream(len(dataset), 2, 0, process=0, n_processes=1)
        batches.append([batch.frames for batch in islice(load_batches(dataset, stream, config), 3)])
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_a_broken_file_is_passed_over_and_named(make_video: MakeVideo, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"not a video at all" * 100)
    cut = make_video("cut.mp4")
    cut.write_bytes(cut.read_bytes()[:600])
    short = make_video("short.mp4", 3)
    dataset = ClipDataset(
        [*map(Source, (broken, cut, short)), Source(make_video("good.mp4"))], small_config()
    )
    clip = dataset[0, 0][0]
    assert clip.frames.shape == (4, 3, 32, 32)
    assert set(clip.skipped) == {str(broken), str(cut), str(short)}
    assert clip.skipped[str(short)] == "has 3 frames, a clip needs 4"


def test_short_videos_are_trained_on_or_held_out_by_their_content(make_video: MakeVideo) -> None:
    """Whatever the seed, their names and what else is there."""
    short = [make_video(f"short{n}.mp4", 7 + n) for n in range(9)]
    long = make_video("long.mp4", 60)

    def used(videos: list[Path], seed: int) -> tuple[set[int], set[int]]:
        """Return the lengths of the short videos that training and validation take clips from."""
        config = small_config(seed=seed, clips_per_video=1, validation_clips=20)
        dataset = ClipDataset([Source(video, name=video.name) for video in videos], config)
        parts = [
            {
                len(read_index(video))
                for number, video in enumerate(videos[:-1])
                if dataset._part(number, held_out=held_out) is not None
            }
            for held_out in (False, True)
        ]
        return parts[0], parts[1]

    training, validation = used([*short, long], 0)
    assert training
    assert validation
    assert not training & validation
    renamed = [video.rename(video.with_name(f"renamed{video.name}")) for video in reversed(short)]
    assert used([*renamed, long], 1) == (training, validation)
    fewer = used([*renamed[::2], long], 2)
    assert fewer[0] <= training
    assert fewer[1] <= validation


def test_no_seed_changes_what_validation_shows(make_video: MakeVideo) -> None:
    sources = [Source(make_video(f"{n}.mp4", 40 + n)) for n in range(3)]
    one, other = (ClipDataset(sources, small_config(seed=seed)) for seed in (0, 1))
    for number in range(4):
        assert torch.equal(one.validation_clip(number).frames, other.validation_clip(number).frames)
    assert not all(torch.equal(one[0, n][0].frames, other[0, n][0].frames) for n in range(4))


def test_longer_clips_are_never_cut_from_what_shorter_ones_are_validated_on(tmp_path: Path) -> None:
    videos = [tmp_path / str(n) for n in range(300)]
    for video in videos:
        video.write_text(video.name)
    split = Split(videos, 0.1)
    for n_frames in (13, 40, 100, 165, 400):
        for number in range(50):
            held_out = split.validation_frames(number, n_frames, 8, 4) or range(0)
            for span in (8, 12, 16):
                training = split.training_frames(number, n_frames, span, 4) or range(0)
                assert not set(held_out) & set(training), (n_frames, span)
    whole = sum(split.training_frames(n, 13, 8, 4) is None for n in range(300))
    assert 0.05 < whole / 300 < 0.16


def test_a_single_video_is_divided_if_a_clip_fits_into_its_end(make_video: MakeVideo) -> None:
    dataset = ClipDataset([Source(make_video("a.mp4", 40))], small_config(holdout_fraction=0.1))
    assert first_frame(dataset.validation_clip(0)) == 36
    dataset = ClipDataset([Source(make_video("b.mp4", 6))], small_config(holdout_fraction=0.1))
    with pytest.raises(TrainingError, match="1 too short to train on one part and validate on another"):
        dataset.validation_clip(0)


def test_a_stride_takes_every_nth_frame(make_video: MakeVideo) -> None:
    dataset = ClipDataset([Source(make_video("a.mp4", 40))], small_config(frame_stride=3, clips_per_video=5))
    for index in range(len(dataset)):
        clip = dataset[0, index][0]
        assert [round((level(clip, t) - 8) / 4) - first_frame(clip) for t in range(4)] == [0, 3, 6, 9]
        assert first_frame(clip) + 9 < 24


def test_of_two_short_videos_one_is_trained_on_and_one_held_out(make_video: MakeVideo) -> None:
    dataset = ClipDataset(
        [Source(make_video(f"{n}.mp4", 8 + n), name=f"{n}.mp4") for n in range(2)], small_config()
    )
    assert dataset[0, 0][0].frames.shape == dataset.validation_clip(0).frames.shape


def test_a_failed_clip_is_replaced_and_its_video_used_again(
    make_video: MakeVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [Source(make_video(f"{n}.mp4", 40), name=f"{n}.mp4") for n in range(2)]
    config = small_config(cache_mib=0)
    undisturbed = [ClipDataset(sources, config)[0, index][0] for index in range(6)]
    dataset = ClipDataset(sources, config)
    fails_once = iter([True])

    def read_with_a_failure(path: Path, *arguments: object) -> object:
        if next(fails_once, False):
            raise UnreadableVideoError(path, "cannot be decoded: a flipped bit")
        return read_frames(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(clips, "read_frames", read_with_a_failure)
    disturbed = [dataset[0, index][0] for index in range(6)]
    assert disturbed[0].skipped == {str(sources[0].video): "cannot be decoded: a flipped bit"}
    assert disturbed[0].frames.shape == undisturbed[0].frames.shape
    for one, other in zip(disturbed[1:], undisturbed[1:], strict=True):
        assert torch.equal(one.frames, other.frames)


def test_several_clips_of_one_read_follow_one_another(make_video: MakeVideo) -> None:
    config = small_config(clips_per_read=3, batch_size=6, clips_per_video=6)
    dataset = ClipDataset([Source(make_video("a.mp4", 60))], config)
    assert len(dataset) == 2
    first, second, third = map(first_frame, dataset[0, 1])
    assert (second, third) == (first + 4, first + 8)
    stream = ClipStream(len(dataset), 2, 0, process=0, n_processes=1)
    batch = next(load_batches(dataset, stream, config))
    assert batch.frames.shape[0] == 6


def test_nothing_but_broken_files_is_an_error(tmp_path: Path) -> None:
    videos = [tmp_path / f"{number}.mp4" for number in range(3)]
    for video in videos:
        video.write_bytes(b"x" * 1000)
    with pytest.raises(TrainingError, match="none of 3 videos can be used for training"):
        ClipDataset([Source(video) for video in videos], small_config())[0, 0]


def test_a_folder_is_searched_for_videos(make_video: MakeVideo, tmp_path: Path) -> None:
    for name in ("b.mp4", "a/c.MKV", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_sources(small_config(data_root=str(tmp_path)))
    assert [source.video.name for source in found] == ["c.MKV", "b.mp4"]


def test_links_are_followed_and_a_loop_of_them_ends(tmp_path: Path) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.ts").touch()
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "loop").symlink_to(tmp_path / "root")
    (tmp_path / "root" / ".unfinished.mp4").touch()
    (tmp_path / "root" / "c.mp4").symlink_to(tmp_path / "elsewhere" / "b.ts")
    found = find_sources(small_config(data_root=str(tmp_path / "root")))
    assert [source.name for source in found] == ["again/b.ts", "c.mp4"]


def test_latents_that_are_not_finite_are_no_target(make_video: MakeVideo, tmp_path: Path) -> None:
    make_video("a.mp4", 40)
    latents = torch.zeros(10, 16, 4, 4)
    latents[3] = torch.nan
    save_file({"latents": latents}, tmp_path / "a.mp4.safetensors")
    config = small_config(
        data_root=str(tmp_path), teacher_latents=str(tmp_path), horizontal_flip=False, num_frames=24
    )
    with pytest.raises(TrainingError, match="holds values that are not finite in latents 0 to 5"):
        ClipDataset(find_sources(config), config)[0, 0]


@pytest.mark.parametrize("entries", [["a.mp4", "b/c.mp4"], [{"video": "a.mp4"}, {"path": "b/c.mp4", "n": 1}]])
def test_annotations_name_videos_below_the_root(tmp_path: Path, entries: object) -> None:
    file = tmp_path / "list.json"
    file.write_text(json.dumps(entries))
    found = find_sources(small_config(annotation_file=str(file), data_root="/videos"))
    assert [source.video for source in found] == [Path("/videos/a.mp4"), Path("/videos/b/c.mp4")]


@pytest.mark.parametrize("text", ["{", "{}", "[]", "[3]", '[{"caption": "no path"}]'])
def test_annotations_that_name_no_video_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "list.json"
    file.write_text(text)
    with pytest.raises(TrainingError, match="annotation_file"):
        find_sources(small_config(annotation_file=str(file)))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="holds no video"):
        find_sources(small_config(data_root=str(tmp_path)))


def test_teacher_latents_belong_to_the_frames_of_the_clip(make_video: MakeVideo, tmp_path: Path) -> None:
    make_video("a.mp4", 40)
    latents = torch.arange(10.0)[:, None, None, None].expand(10, 16, 4, 4).contiguous()
    save_file({"latents": latents}, tmp_path / "a.mp4.safetensors")
    config = small_config(
        data_root=str(tmp_path),
        teacher_latents=str(tmp_path),
        horizontal_flip=False,
        clips_per_video=20,
        holdout_fraction=0.41,  # 16.4 frames: the part to train on ends between two latents
    )
    dataset = ClipDataset(find_sources(config), config)
    assert dataset[0, 0][0].latents is not None
    for index in range(len(dataset)):
        clip = dataset[0, index][0]
        assert clip.latents is not None
        assert first_frame(clip) == 4 * int(clip.latents[0, 0, 0, 0])
        assert clip.lacks_past is not None
        assert bool(clip.lacks_past) == (first_frame(clip) > 0)
    for number in range(4):
        clip = dataset.validation_clip(number)
        assert clip.latents is not None
        assert first_frame(clip) == 4 * int(clip.latents[0, 0, 0, 0]) >= 20


def test_videos_of_one_name_in_two_folders_have_latents_of_their_own(
    make_video: MakeVideo, tmp_path: Path
) -> None:
    for number, folder in enumerate(("one", "two")):
        make_video(f"videos/{folder}/a.mp4", 40)
        (tmp_path / "latents" / folder).mkdir(parents=True)
        latents = torch.full((10, 16, 4, 4), float(number))
        save_file({"latents": latents}, tmp_path / "latents" / folder / "a.mp4.safetensors")
    config = small_config(
        data_root=str(tmp_path / "videos"), teacher_latents=str(tmp_path / "latents"), horizontal_flip=False
    )
    dataset = ClipDataset(find_sources(config), config)
    found = [dataset[0, index][0].latents for index in range(2)]
    assert [None if latents is None else float(latents.mean()) for latents in found] == [0.0, 1.0]


def test_latents_of_another_number_of_frames_are_no_target(make_video: MakeVideo, tmp_path: Path) -> None:
    make_video("a.mp4", 40)
    save_file({"latents": torch.zeros(80, 16, 4, 4)}, tmp_path / "a.mp4.safetensors")
    config = small_config(data_root=str(tmp_path), teacher_latents=str(tmp_path), horizontal_flip=False)
    with pytest.raises(TrainingError, match="holds 80 latents, but 40 frames have 10"):
        ClipDataset(find_sources(config), config)[0, 0]


def test_a_video_without_teacher_latents_is_refused(make_video: MakeVideo, tmp_path: Path) -> None:
    make_video("videos/a.mp4")
    config = small_config(data_root=str(tmp_path / "videos"), teacher_latents=str(tmp_path))
    with pytest.raises(TrainingError, match="1 of 1 videos have no teacher latents"):
        find_sources(config)


def test_the_sample_is_small_and_has_its_provenance_beside_it() -> None:
    assert SAMPLE.stat().st_size <= 150 * 1024
    assert "CC0" in (SAMPLE.parent / "README.md").read_text(encoding="utf-8")
