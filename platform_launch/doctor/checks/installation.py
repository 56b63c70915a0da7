"""Whether Python, its packages, torch and the driver match."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, error, info, warning
from platform_launch.extras import named
from platform_launch.hardware.packages import Module, TorchBuild
from platform_launch.hardware.vendors import Vendor
from platform_launch.text import Phrase, joined


def missing_packages(facts: Facts) -> Iterator[Finding]:
    """Report packages that the job will import but the interpreter lacks."""
    modules, python = facts.installation.modules, facts.installation.python
    missing = [name for name in facts.plan.packages if modules[name].origin is None]
    if not missing:
        return
    folders = [str(folder) for name in missing for folder in modules[name].namespace]
    namespace = (
        Phrase(" (the folder {folders} is not the library)", folders=joined(folders)) if folders else ""
    )
    # Not needed by torchrun, which comes with torch, or by the user's own script.
    optional = [name for name in missing if name != "torch" and facts.plan.launcher == "accelerate"]
    without = (
        Phrase(", pass --launcher torchrun, which does without {names}", names=joined(optional))
        if optional
        else ""
    )
    yield error(
        "package-missing",
        Phrase(
            "{python} has no {packages}{namespace}",
            python=python,
            packages=joined(missing),
            namespace=namespace,
        ),
        python,
        Phrase(
            "{python} -m pip install {packages}{without}, or start platform-launch from an environment that "
            "has them; start_multinode_platform.sh uses the one that PLATFORM_LAUNCH_VENV names",
            python=quote(python),
            packages=quote(named(extra)) if (extra := facts.plan.extra) else " ".join(missing),
            without=without,
        ),
    )


def shadowed_packages(facts: Facts) -> Iterator[Finding]:
    """Report files that hide a library, such as torch.py: Python searches the script's folder first."""
    folder = facts.installation.import_folder
    if folder is None:
        return
    for name in sorted(facts.installation.shadowing):
        yield warning(
            "package-shadowed",
            Phrase("{name} in {folder} hides the library of that name", name=name, folder=folder),
            str(folder / name),
            "rename it, unless it is meant to replace the library",
        )


def user_site(facts: Facts) -> Iterator[Finding]:
    """Report packages below ~/.local: they override those of the environment, on this node only."""
    home, prefix = facts.installation.user_site, facts.installation.prefix
    if home is None:
        return
    found = {
        name: module.origin
        for name, module in facts.installation.modules.items()
        if module.origin is not None and module.origin.is_relative_to(home)
    }
    if found:
        yield warning(
            "package-user-site",
            Phrase(
                "{packages} would be imported from {home}, not from the environment {prefix}",
                packages=joined(found),
                home=home,
                prefix=prefix,
            ),
            str(home),
            "set PYTHONNOUSERSITE=1, or uninstall them there",
        )


def other_environment(facts: Facts) -> Iterator[Finding]:
    """Report that the active environment is not the one whose Python runs."""
    active, prefix = facts.installation.active, facts.installation.prefix
    if active is not None and active != prefix:
        yield warning(
            "interpreter-other-environment",
            Phrase(
                "the active environment is {active}, but the interpreter belongs to {prefix}",
                active=active,
                prefix=prefix,
            ),
            facts.installation.python,
            "start with start_multinode_platform.sh, or with the environment's own python",
        )


# The first torch without CVE-2025-32434 and CVE-2026-24747. Source: the advisories of pytorch/pytorch.
_SAFE_LOADING = (2, 10)


def unsafe_loading(facts: Facts) -> Iterator[Finding]:
    """Report a torch that may run code from a checkpoint even with ``weights_only=True``."""
    build = facts.installation.torch
    if build is None or _release(build.version) >= _SAFE_LOADING:
        return
    where = f"torch {build.version}"
    yield info(
        "torch-unsafe-load",
        Phrase(
            "{torch} can run code from a checkpoint, even with torch.load(weights_only=True) "
            "(CVE-2025-32434, CVE-2026-24747)",
            torch=where,
        ),
        where,
        "load only checkpoints that you trust, or use torch 2.10 or newer",
    )


def torch_and_driver(facts: Facts) -> Iterator[Finding]:
    """Report a torch that silently uses the CPU (built without CUDA), or is too new for the driver."""
    build, gpus = facts.installation.torch, facts.plan.hardware.gpus
    vendor = facts.plan.hardware.accelerator.vendor
    if build is None or vendor is None or facts.plan.hardware.assumed:
        return
    where = f"torch {build.version}"
    if vendor.key != "nvidia":
        yield from _torch_of_vendor(facts, build, vendor)
        return
    if not gpus.devices:
        return
    if build.hip is not None:
        yield _for_another(facts, where, "ROCm", "CUDA")
        return
    if build.cuda is None and build.hip is None:
        yield warning(
            "torch-without-cuda",
            Phrase(
                "{torch} was built without CUDA: this node's GPUs ({count}) would not be used",
                torch=where,
                count=len(gpus.devices),
            ),
            where,
            "install a CUDA build of torch, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU",
        )
    elif build.cuda is not None and gpus.cuda is not None and _major(build.cuda) > _major(gpus.cuda):
        yield warning(
            "torch-newer-than-driver",
            Phrase(
                "{torch} was built for CUDA {built}, the driver {driver} supports CUDA up to {known}: "
                "without NVIDIA's compatibility package CUDA does not start",
                torch=where,
                built=build.cuda,
                driver=gpus.driver,
                known=gpus.cuda,
            ),
            where,
            Phrase(
                "update the driver, or install a torch built for CUDA {version}", version=_major(gpus.cuda)
            ),
        )


def _torch_of_vendor(facts: Facts, build: TorchBuild, vendor: Vendor) -> Iterator[Finding]:
    """Report a torch without support for this vendor, which needs its own build or an extra module."""
    where, module = f"torch {build.version}", vendor.torch_module
    built = {"CUDA": build.cuda, "ROCm": build.hip, "XPU": build.xpu}
    has = next((name for name, version in built.items() if version is not None), "the CPU")
    needs = {"amd": "ROCm", "intel": "XPU"}.get(vendor.key)
    if needs is not None and built[needs] is None:
        yield _for_another(facts, where, has, needs)
    if module and facts.installation.modules.get(module, Module(module, None)).origin is None:
        yield warning(
            "torch-other-vendor",
            Phrase(
                "{python} has no {module}: torch would not use this node's {devices}",
                python=facts.installation.python,
                module=module,
                devices=facts.plan.hardware.accelerator.described,
            ),
            where,
            Phrase("install {module} in the version that fits {torch}", module=module, torch=where),
        )


def _for_another(facts: Facts, where: str, has: str, needs: str) -> Finding:
    return warning(
        "torch-other-vendor",
        Phrase(
            "{torch} was built for {has}: this node's {devices} would not be used",
            torch=where,
            has=has,
            devices=facts.plan.hardware.accelerator.described,
        ),
        where,
        Phrase("install a {needs} build of torch (pytorch.org, Get Started)", needs=needs),
    )


def _major(version: str) -> int:
    return _release(version)[0]


def _release(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)
