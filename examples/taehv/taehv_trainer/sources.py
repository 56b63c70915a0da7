"""Which videos to train on: a folder, a list in JSON, or the shipped sample."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "city.mp4"
# What FFmpeg reads as video, by the usual endings. A file of another name can be listed in annotation_file.
VIDEO_SUFFIXES = frozenset(
    {".3g2", ".3gp", ".asf", ".avi", ".dv", ".f4v", ".flv", ".gif", ".m2t", ".m2ts", ".m2v", ".m4v", ".mj2"}
    | {".mkv", ".mov", ".mp4", ".mpe", ".mpeg", ".mpg", ".mts", ".mxf", ".nut", ".ogm", ".ogv", ".rm"}
    | {".rmvb", ".ts", ".vob", ".webm", ".wmv", ".y4m"}
)
_PATH_KEYS = ("video", "video_path", "path", "file_path")


@dataclass(frozen=True)
class Source:
    """One video, its name below ``data_root``, and the file of its teacher's latents if they count."""

    video: Path
    latents: Path | None = None
    name: str = ""


def find_sources(config: TrainConfig) -> list[Source]:
    """Return the videos to train on, in an order that is the same on every node.

    Raises TrainingError when there is none, or when one has no latents although latents are the target.
    """
    root = Path(config.data_root or ".") if config.data_root or config.annotation_file else SAMPLE.parent
    sources = [Source(video, name=_name(video, root)) for video in _find_videos(config)]
    if config.teacher_latents is None:
        return sources
    folder = Path(config.teacher_latents)
    sources = [replace(source, latents=folder / f"{source.name}.safetensors") for source in sources]
    missing = [s.latents for s in sources if s.latents is not None and not s.latents.is_file()]
    if missing:
        raise TrainingError(
            f"{len(missing)} of {len(sources)} videos have no teacher latents, first {missing[0]}",
            "encode them (prepare_data.py --teacher-checkpoint), leave the videos out by annotation_file, "
            "or drop teacher_latents",
        )
    return sources


def _name(video: Path, root: Path) -> str:
    """Return a video's path below the root: two folders may hold files of one name."""
    try:
        return video.relative_to(root).as_posix()
    except ValueError:
        return video.as_posix().lstrip("/")


def _find_videos(config: TrainConfig) -> list[Path]:
    if config.annotation_file is not None:
        return _read_annotations(Path(config.annotation_file), Path(config.data_root or "."))
    return [SAMPLE] if config.data_root is None else videos_below(Path(config.data_root))


def videos_below(root: Path) -> list[Path]:
    """Return all videos below a folder, links followed. Raises TrainingError if there is none."""
    if not root.is_dir():
        raise TrainingError(f"data_root={str(root)!r} is not a folder", "check --data-root")
    videos = sorted(path for path in _files_below(root) if path.suffix.lower() in VIDEO_SUFFIXES)
    if not videos:
        raise TrainingError(
            f"data_root={str(root)!r} holds no video",
            f"expected files ending in {', '.join(sorted(VIDEO_SUFFIXES))}",
        )
    return videos


def _files_below(root: Path) -> Iterator[Path]:
    """Return all files below a folder that are not hidden; a folder that links reach twice, once."""
    entered: set[tuple[int, int]] = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in entered:
            subfolders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        # Which of two ways to one folder is taken must not differ between nodes.
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (Path(folder) / name for name in files if not name.startswith("."))


def _read_annotations(file: Path, root: Path) -> list[Path]:
    """Read ``["a.mp4", ...]`` or ``[{"video": "a.mp4", ...}, ...]``, paths relative to ``root``."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"annotation_file {file} cannot be read: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise TrainingError(f"annotation_file {file}: expected a list with at least one video")
    return [root / _entry_path(entry, number, file) for number, entry in enumerate(entries)]


def _entry_path(entry: object, number: int, file: Path) -> str:
    if isinstance(entry, dict):
        entry = next((entry[key] for key in _PATH_KEYS if key in entry), None)
    if not isinstance(entry, str):
        raise TrainingError(
            f"annotation_file {file}: entry {number} names no video",
            f"expected a path, or an object with one of the keys {', '.join(_PATH_KEYS)}",
        )
    return entry
