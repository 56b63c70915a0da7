"""Opens a log as bytes of UTF-8, compressed or not; an unreadable file is an error, not an empty log."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from platform_launch.errors import InputError
from platform_launch.extras import pip_install
from platform_launch.text import Phrase
from platform_launch.why.lines.scan import Readable

_BLOCK_BYTES = 1 << 20
# A compressed log with a higher ratio is read only up to this size: a few megabytes may hold a year.
MOST_UNPACKED_MIB = 256
_LARGEST_RATIO = 100
_GZIP, _XZ, _BZIP2, _ZSTANDARD = b"\x1f\x8b", b"\xfd7zX", b"BZh", b"\x28\xb5\x2f\xfd"
_PACKED = (_GZIP, _XZ, _BZIP2, _ZSTANDARD)
# Archives, programs, HDF5 files and pictures begin so.
_OTHERS = (b"PK\x03\x04", b"7z\xbc\xaf", b"Rar!", b"\x7fELF", b"\x89HDF", b"\x89PNG", b"%PDF")
# Bytes of text in any encoding, and zeros, which a full or crashed file system leaves in a log.
_TEXT = bytes({0, 8, 9, 10, 11, 12, 13, 27} | set(range(32, 127)) | set(range(128, 256)))
_HEAD_BYTES = 4096
_MOST_STRANGE = 0.04  # of a log's bytes; of random bytes, a tenth is not text
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def holds_no_text(path: Path) -> bool:
    """Return whether a file is a program, a picture or other binary data, by its first bytes.

    A compressed or unreadable file counts as a log: opening it shows.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    if head.startswith((*_PACKED, *(mark for mark, _ in _MARKS))):
        return False
    return _is_no_text(head)


def _is_no_text(head: bytes) -> bool:
    return head.startswith(_OTHERS) or len(head.translate(None, _TEXT)) > _MOST_STRANGE * len(head)


class OpenedLog:
    """A log that is open for reading."""

    def __init__(self, path: Path) -> None:
        """Open a file. Raises InputError if it cannot be read or is not text."""
        self._path = path
        self.cut = False  # true if the rest was not decompressed
        self._unpacked_bytes = 0
        with ExitStack() as files:
            try:
                self._raw = files.enter_context(path.open("rb"))
                head = self._raw.read(4)
                self._raw.seek(0)
                self._stream = self._unpacked(head)
                start = self._stream.read(_BLOCK_BYTES) if head else b""
            except OSError as error:
                raise InputError(
                    Phrase("{path} cannot be read: {problem}", path=path, problem=error.strerror or error)
                ) from error
            except _BROKEN as error:
                raise self._broken(error) from error
            self._decoder, self._left = None, start
            for mark, name in _MARKS:
                if start.startswith(mark):
                    self._decoder = codecs.getincrementaldecoder(name)(errors="replace")
                    self._left = self._decoder.decode(start[len(mark) :]).encode()
                    break
            if self._decoder is None and _is_no_text(start[:_HEAD_BYTES]):
                raise InputError(
                    Phrase("{path} is binary: expected a log (text, .gz, .xz, .bz2 or .zst)", path=path),
                    "pass the log next to it, or unpack the archive first",
                )
            files.pop_all()  # it stays open

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    @property
    def plain(self) -> BinaryIO | None:
        """The file itself if its bytes are the text, None if they are compressed or in another encoding."""
        return self._raw if self._stream is self._raw and self._decoder is None else None

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, converted to UTF-8 if the log has another encoding."""
        if self._left:
            data, self._left = self._left, b""
            return data
        if self._is_endless():
            self.cut = True
            return b""
        try:
            data = self._stream.read(size)
        except _BROKEN as error:
            raise self._broken(error) from error
        self._unpacked_bytes += len(data)
        return data if self._decoder is None else self._decoder.decode(data, final=not data).encode()

    def _is_endless(self) -> bool:
        """Return whether the ratio of compression is so high that reading on would take forever."""
        packed = self._stream is not self._raw and self._unpacked_bytes >= MOST_UNPACKED_MIB << 20
        return packed and self._unpacked_bytes > _LARGEST_RATIO * self._raw.tell()

    def _unpacked(self, head: bytes) -> Readable:
        if head.startswith(_GZIP):
            return gzip.GzipFile(fileobj=self._raw)
        if head.startswith(_XZ):
            return lzma.LZMAFile(self._raw)
        if head.startswith(_BZIP2):
            return bz2.BZ2File(self._raw)
        return self._zstandard() if head.startswith(_ZSTANDARD) else self._raw

    def _zstandard(self) -> Readable:
        try:
            import zstandard
        except ImportError:
            raise InputError(
                Phrase(
                    "{path} is compressed with zstd, but the Python package zstandard is not installed",
                    path=self._path,
                ),
                Phrase(
                    "{install}, or: zstd -dc FILE | platform-launch why -", install=pip_install("zstandard")
                ),
            ) from None
        return _Zstandard(self._raw, zstandard.ZstdDecompressor, zstandard.ZstdError)

    def _broken(self, error: BaseException) -> InputError:
        return InputError(
            Phrase("{path} cannot be decompressed: {problem}", path=self._path, problem=error),
            "the file is truncated or corrupt; copy it again",
        )


class _Zstandard:
    """The contents of a zstd file, frame by frame; unlike the package's reader it reports a missing end."""

    def __init__(self, raw: BinaryIO, decompressor: Callable[[], Any], error: type[Exception]) -> None:
        self._raw, self._decompressor, self._error = raw, decompressor, error
        self._frame: Any = None

    def read(self, size: int, /) -> bytes:
        """Return the next bytes. Raises EOFError for a truncated or damaged file."""
        data = b""
        while not data and (packed := self._raw.read(size // 8)):
            while packed:
                self._frame = self._frame or self._decompressor().decompressobj()
                try:
                    data += self._frame.decompress(packed)
                except self._error as error:
                    raise EOFError(str(error)) from error
                packed = self._frame.unused_data if self._frame.eof else b""
                self._frame = None if self._frame.eof else self._frame
        if not data and self._frame is not None:
            raise EOFError("it ends in the middle of its packed data")
        return data
