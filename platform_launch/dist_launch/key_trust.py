"""Which key may log in to this node: decided once, and kept until ``wait`` is restarted.

Without a shared secret, nothing proves that a key from the network is rank 0's. So the first one is accepted
and every other is refused, as ``ssh`` does with host keys. If the user named a key for this node
(SSH_PUBLIC_KEY), only that one is ever accepted. With a shared secret, every key was authenticated.
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
    """``named`` is the key that the user named for this node, or empty; keys have the form ``kind base64``.

    ``authenticated``: rank 0 has proven that it knows the nodes' secret.
    """

    folder: WaitFolder
    named: str = ""
    authenticated: bool = False

    def decide(self, offered: str) -> str:
        """Return the key that may log in, given the one that rank 0 offers.

        Raises InputError with both fingerprints if the offered key may not, and OSError if the decision
        cannot be written.
        """
        if self.named:
            return self.named
        trusted = self._trusted()
        if trusted and trusted != offered and not self.authenticated:
            raise InputError(
                Phrase(
                    (
                        "rank 0's key {offered} is refused: this node accepts only {trusted}, the "
                        "first key that it received; if the new key is right, restart this node's "
                        "dist-launch wait"
                    ),
                    offered=fingerprint(offered),
                    trusted=fingerprint(trusted),
                )
            )
        if trusted != offered:
            write_private(self.folder.trusted_key, f"{offered}\n")
        return offered

    def objection(self, offered: str) -> str:
        """Return why rank 0's key will be refused although nothing failed; empty if it will be accepted."""
        if self.named in ("", offered):
            return ""
        return Phrase(
            (
                "rank 0's key {offered} is refused: this node accepts only {named}, which its "
                "SSH_PUBLIC_KEY names; give rank 0 the private key for it (SSH_KEY)"
            ),
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
