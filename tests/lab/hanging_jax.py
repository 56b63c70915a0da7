"""A training in JAX whose second process stops making progress while the first waits for it."""

from __future__ import annotations

import os
import time

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils


def main() -> None:
    """Take some steps, then sleep in one process."""
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        int(os.environ["JAX_NUM_PROCESSES"]),
        int(os.environ["JAX_PROCESS_ID"]),
    )
    for step in range(1_000_000):
        if step == 3 and jax.process_index() == 1:
            fall_asleep()
        multihost_utils.process_allgather(jnp.ones(4))


def fall_asleep() -> None:
    """Wait for nothing."""
    time.sleep(3600)


if __name__ == "__main__":
    main()
