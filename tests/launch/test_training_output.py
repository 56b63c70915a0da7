"""What the output of a training says beyond its cause."""

from __future__ import annotations

import pytest

from platform_launch.launch.training_output import wants_port

PYTHON = b"OSError: [Errno 98] Address already in use\n"
SERVER = b"OSError: [Errno 98] Address already in use (while attempting to bind on address ('', 29501))\n"
TORCH = (
    b"torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    b"address. port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)


@pytest.mark.parametrize(
    ("tail", "port", "wanted"),
    [
        (PYTHON, 29501, True),
        (TORCH, 29501, True),
        (TORCH, 29511, False),
        (TORCH + PYTHON, 29511, False),
        (SERVER, 29501, True),
        (SERVER, 29511, False),
        (b"ValueError: port 29501 is not wanted\n", 29501, False),
        (b"", 29501, False),
    ],
)
def test_a_training_that_lacks_a_port_is_known(tail: bytes, port: int, wanted: bool) -> None:
    assert wants_port(tail, port) is wanted
