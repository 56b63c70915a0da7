"""Train a small network with JAX on several processes, as an example of a JAX script of your own.

    start_multinode_platform.sh --launcher jax --script examples/jax/train.py -- --steps 500

JAX finds its place by itself on Slurm, Open MPI and Kubernetes only, so the script passes on what the
launcher sets: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID; without them it trains as one
process. The data are points on spiral arms. Ends with 128 + n after signal n (SIGTERM, SIGINT, or SIGUSR1
before a time limit), a checkpoint written.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ARMS = 3
TRAINING_POINTS, HELD_OUT_POINTS = 8192, 1024
logger = logging.getLogger("train")

State = dict[str, Any]  # weights, Adam's two moments of them, and the step


def main() -> int:
    """Run one process of the training and return its exit code."""
    options = parse_options()
    if "JAX_NUM_PROCESSES" in os.environ:
        jax.distributed.initialize(
            coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
            num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
            process_id=int(os.environ["JAX_PROCESS_ID"]),
            cluster_detection_method="deactivate",  # what the launcher said holds, whatever else is set
        )
    # The other processes speak up when something is wrong.
    level = logging.INFO if jax.process_index() == 0 else logging.WARNING
    name = f"[process {jax.process_index()}] " if level > logging.INFO else ""
    logging.basicConfig(format=f"{name}%(message)s", stream=sys.stdout)
    logger.setLevel(level)
    return train(options)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="JAX on several processes.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument(
        "--global-batch", type=int, default=256, help="points of one step, over all processes"
    )
    parser.add_argument(
        "--accumulate", type=int, default=1, help="parts of a step's batch, one after another: less memory"
    )
    parser.add_argument("--prefetch", type=int, default=2, help="batches that are made ahead of their step")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/jax/checkpoint.npz"))
    parser.add_argument("--checkpoint-every", type=int, default=200, help="steps")
    parser.add_argument("--log-every", type=int, default=50, help="steps")
    return parser.parse_args()


def train(options: argparse.Namespace) -> int:
    """Train from the checkpoint, if there is one, to the last step or to a signal."""
    if options.global_batch % (jax.device_count() * options.accumulate):
        raise SystemExit(
            f"--global-batch {options.global_batch} cannot be shared by {jax.device_count()} devices in "
            f"{options.accumulate} part(s): expected a multiple of {jax.device_count() * options.accumulate}"
        )
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    # A batch is (parts, points of a part, …): the points are spread over the devices, the parts come in turn.
    sharded, everywhere = (
        NamedSharding(mesh, PartitionSpec(None, "data")),
        NamedSharding(mesh, PartitionSpec()),
    )
    flagged = NamedSharding(mesh, PartitionSpec("data"))
    local_batch = options.global_batch // jax.process_count()
    state = jax.device_put(load(options.checkpoint, new_state()), everywhere)
    step, update = int(state["step"]), jax.jit(make_update(options.learning_rate), out_shardings=everywhere)
    places = f"processes: {jax.process_count()}, {jax.default_backend()} devices: {jax.device_count()}"
    logger.info("%s, %d points per process, from step %d", places, local_batch, step)
    points, arms = draw(TRAINING_POINTS, seed=0)

    def inputs_of(step: int) -> list[jax.Array]:
        """Put this process's share of a step's batch onto its devices."""
        mine = batch(step, options.global_batch)[jax.process_index() * local_batch :][:local_batch]
        parts = (x[mine].reshape(options.accumulate, -1, *x.shape[1:]) for x in (points, arms))
        return [jax.make_array_from_process_local_data(sharded, x) for x in parts]

    stop, agreed = StopRequest(), 0
    flags = np.zeros(jax.local_device_count(), np.int32)
    for inputs in prefetched(inputs_of, range(step, options.steps), options.prefetch):
        told = jax.make_array_from_process_local_data(flagged, flags + stop.received)
        state, loss, number = update(state, *inputs, told)
        step += 1
        if step % options.log_every == 0:
            logger.info("Step %d/%d | Loss: %.3f", step, options.steps, loss)
        agreed = int(number)
        if agreed or step % options.checkpoint_every == 0 or step == options.steps:
            save(options.checkpoint, state)
        if agreed:
            break
    if agreed:
        logger.info("%s: checkpoint written at step %d, leaving", signal.Signals(agreed).name, step)
        return 128 + agreed
    held_out, theirs = draw(HELD_OUT_POINTS, seed=1)
    weights = jax.device_get(state["weights"])
    logger.info("held-out accuracy: %.3f", np.mean(np.argmax(logits(weights, held_out), -1) == theirs))
    return 0


def new_state() -> State:
    """Return the state before the first step, the same in every process."""
    random, sizes = np.random.default_rng(0), (2, 64, 64, ARMS)
    weights = [
        {"w": random.normal(0, (2 / n) ** 0.5, (n, m)).astype(np.float32), "b": np.zeros(m, np.float32)}
        for n, m in pairwise(sizes)
    ]
    zeros = jax.tree.map(np.zeros_like, weights)
    return {"weights": weights, "mean": zeros, "square": zeros, "step": np.zeros((), np.int32)}


def logits(weights: Any, points: Any) -> Any:
    """Return the scores of the arms, ``(points, ARMS)``."""
    *hidden, last = weights
    for layer in hidden:
        points = jax.nn.relu(points @ layer["w"] + layer["b"])
    return points @ last["w"] + last["b"]


def make_update(learning_rate: float) -> Any:
    """Return one step of Adam. Its mean over the sharded batch is what makes the processes talk.

    ``points`` are (parts, points of a part, 2), ``arms`` (parts, points of a part): the slopes of the parts
    are added up before the one step that they make together, so only one part's activations are held.
    """

    def loss_of(weights: Any, points: Any, arms: Any) -> Any:
        scores = jax.nn.log_softmax(logits(weights, points))
        return -jnp.mean(jnp.take_along_axis(scores, arms[:, None], axis=-1))

    def update(state: State, points: Any, arms: Any, flags: Any) -> tuple[State, Any, Any]:
        def add_part(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_of)(state["weights"], *part)), None

        nothing = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, state["weights"]))
        total, _ = jax.lax.scan(add_part, nothing, (points, arms))
        loss, slope = jax.tree.map(lambda x: x / points.shape[0], total)
        step = state["step"] + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], slope)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], slope)
        rate = learning_rate * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        weights = jax.tree.map(
            lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), state["weights"], mean, square
        )
        # The largest flag of all processes comes with the step: they leave together, after the same one.
        return {"weights": weights, "mean": mean, "square": square, "step": step}, loss, jnp.max(flags)

    return update


def prefetched(inputs_of: Callable[[int], Any], steps: Iterable[int], ahead: int) -> Iterator[Any]:
    """Yield the inputs of the steps, made by a thread while earlier steps compute; ``ahead`` 0: in turn."""
    if ahead < 1:
        yield from map(inputs_of, steps)
        return
    with ThreadPoolExecutor(1) as pool:
        coming: deque[Future[Any]] = deque()
        for step in steps:
            coming.append(pool.submit(inputs_of, step))
            if len(coming) > ahead:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def draw(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy points on spiral arms, ``(number, 2)``, and the arm of each."""
    random = np.random.default_rng(seed)
    arms = random.integers(ARMS, size=number, dtype=np.int32)
    along = random.uniform(0.1, 1, number)
    angle = 2 * np.pi * arms / ARMS + 5 * along + random.normal(0, 0.1, number)
    return np.stack((along * np.cos(angle), along * np.sin(angle)), -1).astype(np.float32), arms


def batch(step: int, size: int) -> np.ndarray:
    """Return the points of one step of the whole job; each epoch has a new order, the same everywhere."""
    epoch, index = divmod(step, TRAINING_POINTS // size)
    order = np.random.default_rng(epoch).permutation(TRAINING_POINTS)
    return order[index * size : (index + 1) * size]


def save(path: Path, state: State) -> None:
    """Write the checkpoint, on the main process only: whole, or the one before stays."""
    if jax.process_index() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        with unfinished.open("wb") as file:
            np.savez(file, *jax.tree.leaves(jax.device_get(state)))
        unfinished.replace(path)
    multihost_utils.sync_global_devices("checkpoint")


def load(path: Path, state: State) -> State:
    """Return the main process's checkpoint, or ``state`` without one. Nodes need not share a disk."""
    if jax.process_index() == 0 and path.exists():
        with np.load(path) as file:
            state = jax.tree.unflatten(jax.tree.structure(state), list(file.values()))
    loaded: State = multihost_utils.broadcast_one_to_all(state)
    return loaded


class StopRequest:
    """Remembers the last signal that asked this process to end; 0 is none."""

    def __init__(self) -> None:
        self.received = 0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = number


if __name__ == "__main__":
    sys.exit(main())
