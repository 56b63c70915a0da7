"""For ``platform-launch drill``: registers the ranks, lets a file-size limit kill one, records the data it
reads.

PLATFORM_LAUNCH_DRILL names a folder. A rank leaves ``PID.rank`` there. If the folder has a file

- ``die-at-limit``, a write beyond RLIMIT_FSIZE ends the rank (SIGXFSZ), in the middle of a save. Python
  would raise OSError;
- ``note-data``, the rank appends a line to ``RANK.data`` for each batch that a DataLoader of torch yields:
  a checksum of each of its samples.

Loaded by ``sitecustomize.py`` under the same rules: it never fails a script, and imports nothing of this
package.
"""

import os
import signal
import sys
import zlib

_FOLDER = "PLATFORM_LAUNCH_DRILL"
_BELOW = "PLATFORM_LAUNCH_BELOW"
_MOST_NUMBERS = 4096


def prepare(after_import):
    """Take the part of this process; ``after_import(name, act)`` acts once a module has been imported."""
    folder = os.environ[_FOLDER]
    if os.environ.get(_BELOW) != "rank:%d" % os.getpid():
        return
    open(os.path.join(folder, "%d.rank" % os.getpid()), "w").close()
    if os.path.exists(os.path.join(folder, "die-at-limit")):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if os.path.exists(os.path.join(folder, "note-data")):
        path = os.path.join(folder, "%s.data" % os.environ.get("RANK", "0"))
        after_import("torch.utils.data.dataloader", lambda: _record_batches(path))


def _record_batches(path):
    iterator = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
    original = iterator.__next__
    owner = os.getpid()

    def yield_and_record(self):
        batch = original(self)
        try:
            if os.getpid() == owner:
                with open(path, "a") as notes:
                    notes.write(" ".join(_checksums(batch)) + "\n")
        except Exception:
            pass
        return batch

    iterator.__next__ = yield_and_record


def _checksums(batch):
    """Return a checksum of each sample: of the rows of the first tensor that a batch holds."""
    tensor = _first_tensor(batch)
    if tensor is None or tensor.dim() == 0:
        return []
    rows = tensor.detach().cpu().reshape(len(tensor), -1)[:, :_MOST_NUMBERS].double().numpy()
    return ["%x" % zlib.crc32(row.tobytes()) for row in rows]


def _first_tensor(batch):
    if hasattr(batch, "detach"):
        return batch
    values = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    return next((found for one in values if (found := _first_tensor(one)) is not None), None)
