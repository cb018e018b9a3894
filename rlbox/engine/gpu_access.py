"""Which GPUs a container gets and how: CDI or `--gpus`; what engine and machine offer."""

from __future__ import annotations

import glob
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlbox.errors import EngineError, MachineError, SpecError
from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.system.process_table import read_text_or_empty

ALL_GPUS = -1
CDI_KIND = "nvidia.com/gpu"
GPUS_VARIABLE = "RLBOX_GPUS"
# The toolkit's word for a container that its runtime leaves alone, although the image asks for GPUs.
# Source: nvidia-container-toolkit, internal/config/image: "void" as a value of NVIDIA_VISIBLE_DEVICES.
VISIBLE, LEFT_ALONE = "NVIDIA_VISIBLE_DEVICES", "void"
# With the order of the bus an index is the one that nvidia-smi shows; source: CUDA C++ Programming Guide, variables.
_SEEN, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"

GpuMethod = Literal["none", "cdi", "gpus"]
_ID = re.compile(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+|[0-9]+:[0-9]+")
_SAYS = _("say a number of GPUs (2), a list (0,1), one by its index or UUID (device=0), all, or none")


@dataclass(frozen=True, kw_only=True)
class GpuRequest:
    """The GPUs that are asked for: by `ids` (index, `GPU-…` or `MIG-…`), else the first `count` (-1: all, 0: none)."""

    count: int = 0
    ids: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return not self.count and not self.ids

    @property
    def count_unless_all(self) -> int | None:
        if self.ids:
            return len(self.ids)
        return None if self.count < 0 else self.count

    @property
    def count_all_or_none(self) -> str:
        if self.is_none:
            return "none"
        return "all" if self.count_unless_all is None else str(self.count_unless_all)


@dataclass(frozen=True, kw_only=True)
class GpuSupport:
    """What engine and machine offer.

    `cdi_devices` are names by CDI specifications (`nvidia.com/gpu=0`), as far as the engine tells them. `device_nodes`
    are `/dev/nvidia0` and so on.
    """

    engine_address: str = ""
    is_local: bool = True
    has_nvidia_runtime: bool = False
    is_cdi_enabled: bool = False
    cdi_devices: tuple[str, ...] = ()
    cdi_spec_files: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()

    @property
    def methods_best_first(self) -> tuple[GpuMethod, ...]:
        """Return the ways that are open, the best first.

        CDI comes first: the engine itself knows the devices, so a reload of systemd does not take them away from a
        running container (NVIDIA/nvidia-container-toolkit#48), and a wrong index is an error before the start.
        """
        has_devices = self.cdi_devices or self.cdi_spec_files or not (self.is_local or self.has_nvidia_runtime)
        cdi = self.is_cdi_enabled and has_devices
        return (*(("cdi",) if cdi else ()), *(("gpus",) if self.has_nvidia_runtime else ()))

    @property
    def _cdi_device_ids(self) -> set[str]:
        return {name.partition("=")[2] for name in self.cdi_devices}

    @property
    def machine_gpu_count(self) -> int | None:
        return sum(parse_digits(name) is not None for name in self._cdi_device_ids) or len(self.device_nodes) or None


@dataclass(frozen=True, kw_only=True)
class GpuAccess:
    """How a container gets its GPUs.

    `names` are CDI devices (`cdi`), or what `--gpus` is given: ids, or one word, a number or `all` (`by_count`).
    `env` is set in the container.
    """

    method: GpuMethod = "none"
    names: tuple[str, ...] = ()
    by_count: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        names = [name.rpartition("=")[2] for name in self.names]
        through = {"none": "", "cdi": "CDI", "gpus": "the engine's --gpus"}[self.method]
        return f"{', '.join(names)} through {through}" if through else "none"


NO_GPUS = GpuAccess()


def parse_gpus_option(gpus_option: str, default_count: int) -> GpuRequest:
    """Return what `--gpus` asks for; empty: `default_count`, what the target uses (-1: all).

    Raises SpecError: it is none of the forms. `0` is refused, since it might mean the first GPU or no GPU.
    """
    gpus_option = gpus_option.strip()
    if gpus_option in ("", "none", "all"):
        return GpuRequest(count={"": default_count, "none": 0, "all": ALL_GPUS}[gpus_option])
    ids = tuple(part.strip() for part in gpus_option.removeprefix("device=").split(",") if part.strip())
    wrong = [part for part in ids if not _ID.fullmatch(part)]
    if count := parse_digits(gpus_option):
        return GpuRequest(count=count)
    if not ids or wrong or gpus_option == "0" or len(set(ids)) < len(ids):
        raise SpecError(_("invalid --gpus {text!r}").format(text=gpus_option), next_step=_SAYS)
    return GpuRequest(ids=ids)


def choose_gpu_access(request: GpuRequest, support: GpuSupport, *, set_gpu_count_env: bool = False) -> GpuAccess:
    """Return how a container gets the GPUs of `request`.

    `set_gpu_count_env`: The user named them, so `rlbox doctor` in the container counts by them, not by the target.
    """
    told = {GPUS_VARIABLE: request.count_all_or_none} if set_gpu_count_env else {}
    if request.is_none:
        return GpuAccess(env={VISIBLE: LEFT_ALONE, **told})
    if not support.methods_best_first:
        cdi = "no CDI device" if support.is_cdi_enabled else "CDI is off"
        node = "a" if support.device_nodes else "no"
        raise EngineError(
            _("the engine cannot give a GPU to a container"),
            where=f"{support.engine_address}: no runtime nvidia, {cdi}, {node} /dev/nvidia0",
            next_step=_suggest_gpu_setup(support),
        )
    known = support._cdi_device_ids | {node.removeprefix("/dev/nvidia") for node in support.device_nodes}
    missing = [name for name in request.ids if known and name not in known and name[:4] not in ("GPU-", "MIG-")]
    if missing:
        raise MachineError(
            _("this machine has no GPU {missing}").format(missing=missing[0]),
            where=support.engine_address,
            next_step=_("it has: {have}").format(have=", ".join(sorted(known - {"all"})) or _("all")),
        )
    _require_gpu_count(request, support.machine_gpu_count, support.engine_address)
    if support.methods_best_first[0] == "cdi":
        names = tuple(f"{CDI_KIND}={name}" for name in _choose_cdi_names(request, support))
        return GpuAccess(method="cdi", names=names, env={VISIBLE: LEFT_ALONE, **told})
    word = str(request.count) if request.count > 0 else "all"
    return GpuAccess(method="gpus", names=request.ids or (word,), by_count=not request.ids, env=told)


def _choose_cdi_names(request: GpuRequest, support: GpuSupport) -> tuple[str, ...]:
    """Return the names of the devices; WSL has one, `all`."""
    if request.ids:
        return request.ids
    known = support._cdi_device_ids
    indices = sorted((name for name in known if parse_digits(name) is not None), key=int)
    if request.count > 0 and not known:
        return tuple(map(str, range(request.count)))
    if request.count > 0 and indices:
        return tuple(indices[: request.count])
    return ("all",) if "all" in known or not known else tuple(indices)


def _require_gpu_count(request: GpuRequest, count: int | None, where: str = "") -> None:
    if count is not None and request.count > count:
        raise MachineError(
            _("{count} GPUs are wanted, this machine has {offer_count}").format(count=request.count, offer_count=count),
            where=where,
            next_step=_("--gpus {count}, or lower hardware.gpus of the target").format(count=count),
        )


def create_host_gpu_env(
    request: GpuRequest, caller_env: Mapping[str, str], machine_gpu_count_or_zero: int
) -> dict[str, str]:
    """Return the variables that let programs of this machine itself see the GPUs of `request`, and no other.

    A number of GPUs is taken of those that `caller_env` names; `machine_gpu_count_or_zero` is 0 where not known.
    """
    ids = request.ids
    usual = [name for name in caller_env.get(_SEEN, "").split(",") if name.strip()]
    usual = usual or [str(index) for index in range(machine_gpu_count_or_zero)]
    if machine_gpu_count_or_zero:
        _require_gpu_count(request, len(usual))
        for name in ids:
            if name.isdigit() and int(name) >= machine_gpu_count_or_zero:
                raise MachineError(
                    _("this machine has no GPU {missing}").format(missing=name), next_step=f"--gpus {len(usual)}"
                )
    if request.count > 0:
        ids = tuple(usual[: request.count]) or tuple(map(str, range(request.count)))
    seen = {} if request.count == ALL_GPUS else {_SEEN: ",".join(ids), _ORDER: "PCI_BUS_ID"}
    return {**seen, GPUS_VARIABLE: request.count_all_or_none}


def _suggest_gpu_setup(support: GpuSupport) -> str:
    if support.cdi_spec_files and not support.is_cdi_enabled:
        return _('set {"features": {"cdi": true}} in the engine\'s daemon.json (Docker 25 or newer) and restart it')
    install = "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure && restart the engine"
    return _("{install}; without GPUs: --gpus none").format(install=install)


# Where the toolkit and the engine look for specifications; source: Docker's `cdi-spec-dirs`, CDI's SPEC.md.
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_HOOK = "nvidia-container-runtime-hook"  # an engine that finds it takes `--gpus` without a runtime of that name


def detect_gpu_support_from_engine_info(
    engine_info: Mapping[str, Any], engine_address: str, *, is_local: bool
) -> GpuSupport:
    """Return what an engine offers that gave `engine_info` (its `/info`); one that is local has its files here."""
    folders = tuple(engine_info.get("CDISpecDirs") or ())
    discovered = [str(row.get("ID", "")) for row in engine_info.get("DiscoveredDevices") or ()]  # since Docker 28.2
    return GpuSupport(
        engine_address=engine_address,
        is_local=is_local,
        has_nvidia_runtime=any("nvidia" in name for name in engine_info.get("Runtimes") or ())
        or (is_local and bool(shutil.which(_HOOK))),
        is_cdi_enabled=bool(folders),
        cdi_devices=tuple(name for name in discovered if name.startswith(f"{CDI_KIND}=")),
        cdi_spec_files=tuple(_find_nvidia_spec_files(folders or CDI_FOLDERS)) if is_local else (),
        device_nodes=tuple(sorted(glob.glob("/dev/nvidia[0-9]*"), key=lambda node: int(node[11:]))) if is_local else (),
    )


def _find_nvidia_spec_files(folders: tuple[str, ...]) -> Iterator[str]:
    """Yield the CDI specifications of NVIDIA's GPUs; an engine before 28.2 does not tell which devices they name."""
    for folder in folders:
        paths = sorted(path for kind in ("yaml", "yml", "json") for path in glob.glob(f"{folder}/*.{kind}"))
        yield from (path for path in paths if CDI_KIND in read_text_or_empty(path))
