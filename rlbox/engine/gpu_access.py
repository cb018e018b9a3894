"""Which GPUs a container gets and how: CDI or `--gpus`; what engine and machine offer."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlbox.errors import EngineError, NodeError, SpecError
from rlbox.foreign import whole_number
from rlbox.i18n import _

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
        """How many GPUs are wanted; None for all of them, however many they are."""
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

    `cdi_devices` are names by CDI specifications (`nvidia.com/gpu=0`); empty, with `is_cdi_enabled`, where these cannot
    be read. `missing_cdi_file` is named by a specification and gone. `device_nodes` are `/dev/nvidia0` and so on.
    """

    engine_address: str = ""
    is_local: bool = True
    has_nvidia_runtime: bool = False
    is_cdi_enabled: bool = False
    cdi_devices: tuple[str, ...] = ()
    cdi_spec_files: tuple[str, ...] = ()
    missing_cdi_file: str = ""
    device_nodes: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[GpuMethod, ...]:
        """Return the ways that are open, the best first.

        CDI comes first: the engine itself knows the devices, so a reload of systemd does not take them away from a
        running container (NVIDIA/nvidia-container-toolkit#48), and a wrong index is an error before the start.
        """
        cdi = (
            self.is_cdi_enabled
            and not self.missing_cdi_file
            and (bool(self.cdi_devices) or not (self.is_local or self.has_nvidia_runtime))
        )
        found: list[tuple[GpuMethod, bool]] = [("cdi", cdi), ("gpus", self.has_nvidia_runtime)]
        return tuple(way for way, there in found if there)

    @property
    def machine_gpu_count(self) -> int:
        """How many GPUs the machine has; 0: not known."""
        indices = {name.partition("=")[2] for name in self.cdi_devices}
        return sum(whole_number(name) is not None for name in indices) or len(self.device_nodes)


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
        """Return it in words, as `0, 1 through CDI`."""
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
    if count := whole_number(gpus_option):
        return GpuRequest(count=count)
    if not ids or wrong or gpus_option == "0" or len(set(ids)) < len(ids):
        raise SpecError(_("--gpus {text!r} does not say which GPUs").format(text=gpus_option), next_step=_SAYS)
    return GpuRequest(ids=ids)


def choose_gpu_access(request: GpuRequest, support: GpuSupport, *, set_rlbox_gpus_env: bool = False) -> GpuAccess:
    """Return how a container gets the GPUs of `request`.

    `set_rlbox_gpus_env`: The user named them, so `rlbox doctor` in the container counts by them, not by the target.
    Raises EngineError: the engine offers no way.
    Raises NodeError: the machine has fewer GPUs, or not those.
    """
    told = {GPUS_VARIABLE: request.count_all_or_none} if set_rlbox_gpus_env else {}
    if request.is_none:
        return GpuAccess(env={VISIBLE: LEFT_ALONE, **told})
    if not support.methods:
        raise EngineError(
            _("the engine cannot give a GPU to a container"), where=_why(support), next_step=_suggest_gpu_setup(support)
        )
    ids = _ids(request, support)
    if support.methods[0] == "cdi":
        names = tuple(f"{CDI_KIND}={name}" for name in ids or _everything(support))
        return GpuAccess(method="cdi", names=names, env={VISIBLE: LEFT_ALONE, **told})
    word = str(request.count) if request.count > 0 else "all"
    return GpuAccess(method="gpus", names=ids if request.ids else (word,), by_count=not request.ids, env=told)


def create_host_gpu_env(
    request: GpuRequest, caller_env: Mapping[str, str], machine_gpu_count_or_zero: int
) -> dict[str, str]:
    """Return the variables that let programs of this machine itself see the GPUs of `request`, and no other.

    `caller_env`: The caller's environment: a number of GPUs is taken of those that it names.
    `machine_gpu_count_or_zero`: GPUs of this machine; 0: not known.
    Raises NodeError: there are fewer.
    Raises SpecError: it is a way to name a GPU that only engines know.
    """
    ids = request.ids
    if any(":" in name for name in ids):
        raise SpecError(
            _("--gpus {ids}: in place a part of a GPU is named by its MIG-… id").format(ids=",".join(ids)),
            next_step=_SAYS,
        )
    usual = [name for name in caller_env.get(_SEEN, "").split(",") if name.strip()] or [
        str(one) for one in range(machine_gpu_count_or_zero)
    ]
    absent = [
        name for name in ids if machine_gpu_count_or_zero and name.isdigit() and int(name) >= machine_gpu_count_or_zero
    ]
    if absent or (machine_gpu_count_or_zero and request.count > len(usual)):
        what = (
            _("GPU {absent} is").format(absent=absent[0])
            if absent
            else _("{count} GPUs are").format(count=request.count)
        )
        raise NodeError(
            _("{what} wanted, this machine has {count}").format(what=what, count=len(usual)),
            next_step=f"--gpus {len(usual)}",
        )
    if request.count > 0:
        ids = tuple(usual[: request.count]) or tuple(map(str, range(request.count)))
    seen = {} if request.count == ALL_GPUS else {_SEEN: ",".join(ids), _ORDER: "PCI_BUS_ID"}
    return {**seen, GPUS_VARIABLE: request.count_all_or_none}


def assume_cdi_access(request: GpuRequest) -> GpuAccess:
    """Return how a container would get its GPUs where CDI is offered: for a dry run that no engine answers."""
    count = request.count if request.count > 0 else 0
    names = request.ids or tuple(map(str, range(count))) or ("all",)
    return NO_GPUS if request.is_none else GpuAccess(method="cdi", names=tuple(f"{CDI_KIND}={name}" for name in names))


def _suggest_gpu_setup(support: GpuSupport) -> str:
    if support.missing_cdi_file:
        return _("sudo nvidia-ctk cdi generate --output={cdi_file}").format(
            cdi_file=(support.cdi_spec_files or ("/etc/cdi/nvidia.yaml",))[0]
        )
    if support.cdi_spec_files and not support.is_cdi_enabled:
        return _('set {"features": {"cdi": true}} in the engine\'s daemon.json (Docker 25 or newer) and restart it')
    install = "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure && restart the engine"
    return _("{install}; without GPUs: --gpus none").format(install=install)


def _why(offer: GpuSupport) -> str:
    if offer.missing_cdi_file:
        gone = f"its CDI specification names {offer.missing_cdi_file}, which is gone (was the driver updated?)"
        return f"{offer.engine_address}: {gone}"
    cdi = "no CDI device" if offer.is_cdi_enabled else "CDI is off"
    return f"{offer.engine_address}: no runtime nvidia, {cdi}, {'a' if offer.device_nodes else 'no'} /dev/nvidia0"


def _ids(request: GpuRequest, offer: GpuSupport) -> tuple[str, ...]:
    """Return the ids of the wished GPUs; empty: all there are."""
    known = {name.partition("=")[2] for name in offer.cdi_devices} | {
        node.removeprefix("/dev/nvidia") for node in offer.device_nodes
    }
    missing = [name for name in request.ids if known and name not in known and name[:4] not in ("GPU-", "MIG-")]
    if missing:
        have = ", ".join(sorted(known - {"all"})) or _("all")
        raise NodeError(
            _("this machine has no GPU {missing}").format(missing=missing[0]),
            where=offer.engine_address,
            next_step=_("it has: {have}").format(have=have),
        )
    if request.ids or request.count == ALL_GPUS:
        return request.ids
    if offer.machine_gpu_count and request.count > offer.machine_gpu_count:
        step = _("--gpus {count}, or lower hardware.gpus of the target").format(count=offer.machine_gpu_count)
        raise NodeError(
            _("{count} GPUs are wanted, this machine has {offer_count}").format(
                count=request.count, offer_count=offer.machine_gpu_count
            ),
            where=offer.engine_address,
            next_step=step,
        )
    if (
        offer.methods[0] == "cdi" and offer.cdi_devices and not offer.machine_gpu_count
    ):  # as on WSL, whose only device is `all`
        return ()
    numbers = sorted(number for name in known if (number := whole_number(name)) is not None) or range(request.count)
    return tuple(str(number) for number in list(numbers)[: request.count])


def _everything(offer: GpuSupport) -> tuple[str, ...]:
    names = [name.partition("=")[2] for name in offer.cdi_devices]
    numbers = sorted(name for name in names if whole_number(name) is not None)
    return tuple(numbers) if names and "all" not in names else ("all",)


# Where the toolkit and the engine look for specifications; source: Docker's `cdi-spec-dirs`, CDI's SPEC.md.
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_HOOK = "nvidia-container-runtime-hook"  # an engine that finds it takes `--gpus` without a runtime of that name


def probe_gpu_support(engine_info: Mapping[str, Any], engine_address: str, *, is_local: bool) -> GpuSupport:
    """Return what is offered by the engine that gave `engine_info` (its `/info`) at the address `engine_address`.

    `is_local`: The engine is on this machine, so its files and devices can be looked at.
    """
    folders = tuple(engine_info.get("CDISpecDirs") or ())
    files = tuple(_spec_files(folders or CDI_FOLDERS)) if is_local else ()
    texts = [_read_text(path) for path in files]
    told = [str(row.get("ID", "")) for row in engine_info.get("DiscoveredDevices") or ()]  # since Docker 28.2
    names = [name for name in told if name.startswith(f"{CDI_KIND}=")] or [
        name for text in texts for name in parse_cdi_qualified_gpu_names(text)
    ]
    named = [path for text in texts for path in parse_cdi_host_mount_paths(text)]
    return GpuSupport(
        engine_address=engine_address,
        is_local=is_local,
        has_nvidia_runtime=any("nvidia" in name for name in engine_info.get("Runtimes") or ())
        or (is_local and bool(shutil.which(_HOOK))),
        is_cdi_enabled=bool(folders),
        cdi_devices=tuple(dict.fromkeys(names)),
        cdi_spec_files=files,
        missing_cdi_file=next((path for path in named if not os.path.lexists(path)), ""),
        device_nodes=tuple(sorted(glob.glob("/dev/nvidia[0-9]*"), key=lambda node: int(node[11:]))) if is_local else (),
    )


def parse_cdi_qualified_gpu_names(spec_text: str) -> list[str]:
    """Return the names of NVIDIA's GPUs in a CDI specification (JSON, or YAML as the toolkit writes it)."""
    kind, names, __ = _parse_cdi(spec_text)
    return [f"{CDI_KIND}={name}" for name in names] if kind == CDI_KIND else []


def parse_cdi_host_mount_paths(spec_text: str) -> list[str]:
    kind, __, paths = _parse_cdi(spec_text)
    return paths if kind == CDI_KIND else []


def _parse_cdi(text: str) -> tuple[str, list[str], list[str]]:
    import yaml

    try:
        spec = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError:
        spec = None
    if not isinstance(spec, dict):
        return "", [], []
    rows = spec.get("devices") or ()
    edits = [row.get("containerEdits") or {} for row in (spec, *rows)]
    paths = [str(mount["hostPath"]) for edit in edits for mount in edit.get("mounts") or ()]
    return str(spec.get("kind", "")), [str(row["name"]) for row in rows], paths


def _spec_files(folders: tuple[str, ...]) -> Iterator[str]:
    for folder in folders:
        yield from sorted(path for kind in ("yaml", "yml", "json") for path in glob.glob(f"{folder}/*.{kind}"))


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
