"""TCPStore is opened in one module of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import platform_launch

PACKAGE = Path(platform_launch.__file__).parent
# A probe stands for a user's script; the rest waits for its port to the rendezvous.
ALLOWED = {
    "rendezvous/store.py",
    "rendezvous/bare_torch.py",  # loads it, and opens none
    "doctor/probes/collective_torch.py",
}


def names_tcpstore(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "TCPStore")
        or (isinstance(node, ast.alias) and node.name == "TCPStore")
        or (isinstance(node, ast.Name) and node.id == "TCPStore")
        for node in ast.walk(tree)
    )


def test_tcpstore_is_opened_in_one_module() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if names_tcpstore(path)}
    assert "rendezvous/store.py" in found
    assert found <= ALLOWED
