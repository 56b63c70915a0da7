"""Which key may log in to this node: decided once, and kept until ``wait`` is started anew.

A cluster without a shared secret cannot prove that a key which comes over the network is rank 0's. So the
first one is taken and every other refused, as ``ssh`` does with host keys; a key that the user named for this
node (SSH_PUBLIC_KEY) is the only one from the beginning. With a shared secret each key was authenticated.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

from platform_launch.dist_launch.folder import WaitFolder, read_private, write_private
from platform_launch.errors import InputError
from platform_launch.text import Phrase


@dataclass(frozen=True)
class KeyTrust:
    """``named`` is the key that the user named for this node, empty for none; keys are ``kind base64``.

    ``authenticated`` says that offered keys come with proof that rank 0 shares the nodes' secret.
    """

    folder: WaitFolder
    named: str = ""
    authenticated: bool = False

    def decide(self, offered: str) -> str:
        """Return the key that may log in, given the one that rank 0 offers.

        Raises InputError, which shows both fingerprints, when the offered one must not, OSError when the
        decision cannot be kept.
        """
        if self.named:
            return self.named
        trusted = self._trusted()
        if trusted and trusted != offered and not self.authenticated:
            raise InputError(
                Phrase(
                    "rank 0's key {offered} is refused: this node lets in {trusted}, the one that it "
                    "met first; if the new one is right, start this node's dist-launch wait anew",
                    offered=fingerprint(offered),
                    trusted=fingerprint(trusted),
                )
            )
        if trusted != offered:
            write_private(self.folder.trusted_key, f"{offered}\n")
        return offered

    def objection(self, offered: str) -> str:
        """Return why rank 0 will not get in with its key although nothing failed, empty when it will."""
        if self.named in ("", offered):
            return ""
        return Phrase(
            "rank 0's key {offered} is refused: this node lets in {named}, the one that its SSH_PUBLIC_KEY "
            "names; give rank 0 the private key of that one (SSH_KEY)",
            offered=fingerprint(offered),
            named=fingerprint(self.named),
        )

    def _trusted(self) -> str:
        try:
            return read_private(self.folder.trusted_key).strip()
        except FileNotFoundError:
            return ""


def fingerprint(key: str) -> str:
    """Return a key's fingerprint as ``ssh-keygen -l`` shows it."""
    try:
        blob = base64.b64decode(key.split()[1], validate=True)
    except (IndexError, binascii.Error):
        return "(no key)"
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
