"""Small videos to train on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

MakeVideo = Callable[..., Path]


@pytest.fixture
def make_video(tmp_path: Path) -> MakeVideo:
    """Write ``make_video(name, n_frames)``: frame t is filled with grey level ``4 * t + 8``."""

    def make(name: str, n_frames: int = 40, height: int = 48, width: int = 64) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=25, options={"crf": "1", "g": "8"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for t in range(n_frames):
                image = np.full((height, width, 3), 4 * t + 8, dtype=np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        return path

    return make
