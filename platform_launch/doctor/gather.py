"""Gathers the facts of this node through ``hardware/``."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.doctor.facts import Facts, Installation
from platform_launch.environment import Environment
from platform_launch.errors import HardwareError, InputError
from platform_launch.hardware import Interface, host, names, network, packages, ports, storage
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.plan.recipes import read_literals
from platform_launch.plan.request import Form

if TYPE_CHECKING:
    from platform_launch.health.reading import DeviceReading

# The part of a launch's 0.5 s for name servers that do not answer.
RESOLVE_LIMIT_S = 0.3
_OUTPUT_FLAGS = ("--output-dir", "--output_dir")


def gather(env: Environment, plan: LaunchPlan) -> Facts:
    """Gather the facts for the launch of ``plan``; takes a few hundredths of a second, 0.4 s at worst."""
    topology = plan.topology
    deadline_s = time.monotonic() + RESOLVE_LIMIT_S
    own = names.addresses_of(env.hostname)
    master = names.addresses_of(topology.master_addr) if topology.nnodes > 1 else None
    address = own_address(plan)
    reverse = names.names_of(address) if topology.nnodes > 1 and address else None
    output = output_folder(plan)
    return Facts(
        env=env,
        plan=plan,
        installation=_installation(env, plan),
        storage={
            "logs": storage.read(plan.log_path.parent),
            "output": storage.read(output or _working_folder()),
            "temporary": storage.read(storage.temporary_folder()),
            "shm": storage.read(Path("/dev/shm")),  # noqa: S108 - looked at, never written
        },
        named_folders=frozenset({"output"} if output else ()),
        master_port=ports.probe(topology.master_port) if topology.is_master else None,
        interfaces=network.all_names(),
        locks=storage.locks(_extensions(env, plan)),
        available_memory_gib=host.available_gib(),
        exempt_from_memlock=host.may_lock_any(),
        clock_s=time.time(),
        devices=_devices(plan),
        # last, so that the resolver has had time
        own_name=own.answer_by(deadline_s),
        master_name=master.answer_by(deadline_s) if master else None,
        reverse_name=reverse.answer_by(deadline_s) if reverse else None,
    )


def _devices(plan: LaunchPlan) -> DeviceReading | None:
    """Return the health of the GPUs; None without any, or if the driver fails (reported elsewhere)."""
    gpus = plan.hardware.gpus.monitored
    if plan.hardware.assumed or not gpus:
        return None
    from platform_launch.hardware import gpu_health
    from platform_launch.health.reading import DeviceReading

    with suppress(HardwareError):
        return DeviceReading(time.monotonic(), gpu_health.read_once(gpus))
    return None


def output_folder(plan: LaunchPlan) -> Path | None:
    """Return where the job writes: an argument of the script, or its config's ``output_dir``."""
    arguments = plan.training.program.arguments
    for index, argument in enumerate(arguments):
        flag, _, value = argument.partition("=")
        if flag in _OUTPUT_FLAGS:
            return Path(value or next(iter(arguments[index + 1 :]), "."))
    if plan.training.config is None:
        return None
    try:
        output_dir = read_literals(plan.training.config).get("output_dir")
    except InputError:  # another kind of config, for a script of the user's own
        return None
    return Path(output_dir) if isinstance(output_dir, str) else None


def _installation(env: Environment, plan: LaunchPlan) -> Installation:
    vendor = plan.hardware.accelerator.vendor
    beside_torch = (vendor.torch_module,) if vendor is not None and vendor.torch_module else ()
    modules = packages.find((*plan.packages, *beside_torch))
    first = _import_folder(plan)
    # conda's base is active in every shell by default, and means nothing
    conda = env.get("CONDA_PREFIX") if env.get("CONDA_DEFAULT_ENV") != "base" else None
    active = env.get("VIRTUAL_ENV") or conda
    return Installation(
        python=plan.python,
        prefix=Path(sys.prefix).resolve(),
        active=Path(active).resolve() if active else None,
        user_site=packages.user_site(),
        modules=modules,
        torch=packages.torch_build(modules["torch"]) if "torch" in modules else None,
        import_folder=first,
        shadowing=packages.shadowing(first, plan.packages) if first is not None else frozenset(),
    )


def _import_folder(plan: LaunchPlan) -> Path | None:
    """Return the first folder that Python searches: the script's, or for a module the working directory."""
    program = plan.training.program
    if program.form is Form.MODULE:
        return _working_folder()
    return program.source.parent if program.source is not None and program.form is not Form.COMMAND else None


def own_interface(plan: LaunchPlan) -> Interface | None:
    """Return the interface by which the other nodes reach this one."""
    interfaces = plan.hardware.interfaces
    on_route = (interface for interface in interfaces if interface.name == plan.hardware.route_interface)
    return next((interface for interface in (*on_route, *interfaces) if interface.addresses), None)


def own_address(plan: LaunchPlan) -> str | None:
    """Return the address by which the other nodes know this one."""
    interface = own_interface(plan)
    return interface.addresses[0] if interface else None


def _extensions(env: Environment, plan: LaunchPlan) -> Path:
    chosen = {variable.name: variable.value for variable in plan.env}
    folder = chosen.get("TORCH_EXTENSIONS_DIR") or env.get("TORCH_EXTENSIONS_DIR")
    return Path(folder or os.path.expanduser("~/.cache/torch_extensions"))  # noqa: PTH111 - a user may have no home


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:  # removed meanwhile
        return Path()
