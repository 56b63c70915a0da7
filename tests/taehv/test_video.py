"""Decoding: every frame is found by when it is shown, in whatever container, at whatever rate."""

from __future__ import annotations

import errno
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from taehv_trainer import video
from taehv_trainer.video import UnreadableVideoError, read_frames, read_index

N_FRAMES = 60
SIZE = (48, 64)


def write(path: Path, codec: str, *, milliseconds: bool = False, start: int = 0, **settings: object) -> Path:
    """Write frames of grey level ``3 * t + 8``; with ``milliseconds`` the gaps between them differ."""
    options = {"open": {"x264-params": "open-gop=1"}, "sharp": {"b": "4000000"}}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options.get(str(settings.get("options")), {}))
        stream.width, stream.height, stream.pix_fmt = SIZE[1], SIZE[0], "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = 12, 2
        if "color_trc" in settings:
            stream.codec_context.color_trc = settings["color_trc"]
        if "rotation" in settings:
            stream.set_display_rotation(settings["rotation"])
        if milliseconds:
            stream.codec_context.time_base = Fraction(1, 1000)
        shown = start
        for t in range(N_FRAMES):
            image = np.full((*SIZE, 3), 3 * t + 8, dtype=np.uint8)
            image[:24, :, 0] = 255 if "rotation" in settings else 3 * t + 8
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = shown, Fraction(1, 1000 if milliseconds else 25)
            shown += 17 + 9 * (t % 7) if milliseconds else 1
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    ("name", "codec", "settings"),
    [
        ("constant.mp4", "libx264", {}),
        ("open_groups.mp4", "libx264", {"options": "open"}),
        ("variable.mp4", "libx264", {"milliseconds": True}),
        ("variable.mkv", "libx264", {"milliseconds": True}),
        ("late.mkv", "libx264", {"start": 250}),
        ("program_stream.mpg", "mpeg2video", {"options": "sharp"}),
        ("transport_stream.ts", "libx264", {}),
        ("no_times.avi", "mpeg4", {}),
        ("vp9.webm", "libvpx-vp9", {}),
    ],
)
def test_a_clip_holds_the_frames_that_counting_from_the_beginning_gives(
    name: str, codec: str, settings: dict[str, object], tmp_path: Path
) -> None:
    path = write(tmp_path / name, codec, **settings)  # type: ignore[arg-type]
    index = read_index(path)
    assert len(index) == N_FRAMES
    whole = read_frames(path, index, SIZE)
    assert [round((frame.mean() - 8) / 3) for frame in whole] == pytest.approx(list(range(N_FRAMES)), abs=2)
    for start in range(0, N_FRAMES - 4, 5):
        assert np.array_equal(read_frames(path, index, SIZE, start, 5), whole[start : start + 5]), start


@pytest.mark.parametrize("degrees", [90, 180, -90])
def test_a_rotated_video_is_shown_upright(degrees: int, tmp_path: Path) -> None:
    path = write(tmp_path / "phone.mp4", "libx264", rotation=degrees)
    index = read_index(path)
    assert (index.height, index.width) == (SIZE if degrees == 180 else SIZE[::-1])
    (frame,) = read_frames(path, index, (index.height, index.width), 0, 1)
    # The stored upper half is red. A display rotation turns counterclockwise.
    edges = {
        "top": frame[4, frame.shape[1] // 2],
        "left": frame[frame.shape[0] // 2, 4],
        "bottom": frame[-4, frame.shape[1] // 2],
        "right": frame[frame.shape[0] // 2, -4],
    }
    red = {side for side, pixel in edges.items() if pixel[0] > 200 and pixel[1] < 100}
    assert {90: "left", 180: "bottom", -90: "right"}[degrees] in red
    assert {90: "right", 180: "top", -90: "left"}[degrees] not in red


def test_hdr_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "hdr.mp4", "libx264", color_trc=16)
    with pytest.raises(UnreadableVideoError, match="is HDR, PQ"):
        read_index(path)


def test_a_read_error_that_passes_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.mp4", "libx264")
    failures = [OSError(errno.EIO, "Input/output error"), OSError(errno.ESTALE, "Stale file handle")]
    opened = av.open

    def open_after_failures(file: str) -> object:
        if failures:
            raise failures.pop()
        return opened(file)

    monkeypatch.setattr(video, "_PAUSES_S", (0, 0))
    monkeypatch.setattr(av, "open", open_after_failures)
    assert len(read_index(path)) == N_FRAMES
    assert not failures


def test_a_missing_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(UnreadableVideoError, match="cannot be decoded"):
        read_index(tmp_path / "nowhere.mp4")


def test_pixels_that_are_not_square_are_shown_as_they_are_meant(tmp_path: Path) -> None:
    file = tmp_path / "anamorphic.mp4"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(3, 2)
        image = np.zeros((48, 64, 3), dtype=np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    index = read_index(file)
    assert (index.height, index.width) == (48, 96)
    assert index.covering(24, 24) == (24, 48)
