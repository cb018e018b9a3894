"""A wheel that is compiled once from a locked source, before any image is built. The schema of `[[stack.compile]]`."""

from __future__ import annotations

import re
from typing import Annotated

from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field, StringConstraints, model_validator

from rlbox.config.schema import AptPackage, EnvName, SingleLine, SpecModel
from rlbox.i18n import _

Arch = Annotated[str, StringConstraints(pattern=r"^sm_\d{2,3}[af]?$")]
Distribution = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
BuildNeed = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?[^\s#]*$")]
Folder = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*)?$")]

# Tried: the wheels of 13.0 are a whole compiler; the wheel of CUDA 12 has ptxas alone.
COMPILER_WHEELS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
_FIRST_CUDA = 13


class Compile(SpecModel):
    """What is compiled, with what, and for which GPUs; made by `rlbox compile`, never on the machine that runs it."""

    name: Distribution = Field(description="distribution to build")
    version: SingleLine = Field("", description="version of the source archive on the index; empty: use url and ref")
    url: SingleLine = Field("", description="git repository of the source; empty: use version")
    ref: SingleLine = Field("", description="branch, tag or commit of url; the lock file pins the commit")
    folder: Folder = Field("", description="source directory with pyproject.toml or setup.py; empty: the top directory")
    cuda: Annotated[str, StringConstraints(pattern=r"^(\d+\.\d+)?$")] = Field(
        "", description="CUDA version of the compiler and of torch: 13.0; empty: C++ only"
    )
    archs: tuple[Arch, ...] = Field((), description="GPU architectures to compile for: sm_90; empty: hardware.arch")
    needs: tuple[BuildNeed, ...] = Field(
        ("setuptools", "wheel"), description="packages that the build imports; without a version: the stack's version"
    )
    packages: tuple[AptPackage, ...] = Field(
        (), description="apt packages for the build, in addition to g++ and python3-dev"
    )
    env: dict[EnvName, SingleLine] = Field(
        default_factory=dict, description="environment variables of the build; MAX_JOBS limits parallel compilers"
    )
    units: tuple[SingleLine, ...] = Field(
        (), description="patterns of CUDA files to compile; functions of other files raise an error; empty: all"
    )
    memory_gib: Annotated[float, Field(gt=0)] = Field(4.0, description="memory of one compiler process, GiB")

    @model_validator(mode="after")
    def _whole(self) -> Compile:
        if bool(self.version) == bool(self.url) or bool(self.url) != bool(self.ref):
            raise ValueError(
                _("set version, for the source archive of the package index, or url and ref, for a git tree")
            )
        if self.version:
            Version(self.version)
        if self.cuda and int(self.cuda.partition(".")[0]) < _FIRST_CUDA:
            raise ValueError(
                _(
                    "no wheel has the compiler of CUDA {cuda} (the CUDA 12 wheel has ptxas alone): use a "
                    "published wheel by checksum ([[stack.wheels]]), or a base image that has the compiler "
                    "(a devel image)"
                ).format(cuda=self.cuda)
            )
        return self

    @property
    def distribution_name(self) -> str:
        return canonicalize_name(self.name)

    def list_archs_if_cuda(self, hardware_arch: str) -> tuple[str, ...]:
        """Return the architectures that it is compiled for, sorted; none where it is C++ alone."""
        return tuple(sorted(self.archs or (hardware_arch,))) if self.cuda else ()

    def find_spec_errors(self, hardware_arch: str, stack_index_packages: frozenset[str]) -> list[str]:
        name, archs = self.name, self.archs or ((hardware_arch,) if hardware_arch else ())
        errors = []
        if self.distribution_name in stack_index_packages:
            text = _("stack.compile: {name} is also among the packages of the stack: name it once")
            errors.append(text.format(name=name))
        if self.cuda and not archs:
            errors.append(_("stack.compile: {name} has no archs, and the target no hardware.arch").format(name=name))
        if self.archs and not self.cuda:
            errors.append(_("stack.compile: {name} has archs without cuda, which compiles for them").format(name=name))
        if self.cuda and hardware_arch and hardware_arch not in [arch.rstrip("af") for arch in archs]:
            errors.append(
                _("stack.compile: {name} is compiled for {archs}, the target has {hardware_arch}").format(
                    name=name, archs=", ".join(archs), hardware_arch=hardware_arch
                )
            )
        return errors


def make_arch_build_env(archs: tuple[str, ...]) -> dict[str, str]:
    """Return the variables by which builds take their architectures, those of torch, CMake and of some packages."""
    if not archs:
        return {}
    numbers = [arch.removeprefix("sm_") for arch in archs]  # 90a, as CMake writes sm_90a
    versions = [re.sub(r"^(\d+)(\d)", r"\1.\2", number) for number in numbers]  # 9.0a, as torch does
    return {
        "CUDAARCHS": ";".join(numbers),
        "FLASHINFER_CUDA_ARCH_LIST": " ".join(versions),
        "FLASH_ATTN_CUDA_ARCHS": ";".join(numbers),
        "NVTE_CUDA_ARCHS": ";".join(numbers),
        "TORCH_CUDA_ARCH_LIST": ";".join(versions),
    }
