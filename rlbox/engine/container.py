"""A container of a run or a shell as one value, and as options of the docker client and of docker-py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rlbox.engine.gpu_access import NO_GPUS, GpuAccess
from rlbox.values import Mount

NetworkKind = Literal["own", "host", "bridge", "none"]


@dataclass(frozen=True, kw_only=True)
class ContainerDefaults:
    """Limits and data disk of containers started from the image; GiB, 0 means no limit.

    `ulimits` and `cap_add` are those of the fixes below the target's own; an empty limit is left to the engine.
    `gpus` is how many GPUs they get: 0 for none, -1 for all of the machine.
    `devices` maps devices of the machine, or folders of them, to what may be done with them (`rwm`).
    """

    network: NetworkKind
    shm_gib: float
    memory_gib: float
    cpus: float
    pids: int
    user: Literal["caller", "root"]
    disk_mount: str
    disk_host_dir: str
    creates_disk_dir: bool
    needed_disk_gib: float
    ulimits: Mapping[str, str] = field(default_factory=dict)
    cap_add: tuple[str, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    allow_outside_access: bool = False
    gpus: int = 0
    gpu: str = ""
    arch: str = ""
    gpu_grade: str = ""


CA_BUNDLE_IN_CONTAINER = "/run/rlbox/ca.crt"
"""Where a container sees the CA bundle of its machine."""

CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
"""Variables that name it to OpenSSL, requests, curl, pip, git and Node."""

TARGET_LABEL, RUN_LABEL, OWNER_LABEL = "rlbox.target", "rlbox.run", "rlbox.owner"
NETWORK_LABEL = "rlbox.network"

OWN_NETWORK = "own"
"""A network of the container's own: a bridge that is made before it and goes with it."""

ACTIVE_STATES = ("created", "running", "restarting", "paused")
"""What an engine says of a container that goes on, or is about to start."""

DISK_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
"""What root in a container keeps: a data disk may be somebody else's, and root without them cannot write to it."""

LOOPBACK = "127.0.0.1"
"""Where ports of a container are published on its engine's machine, and nowhere else."""

_CLOSED = "no-new-privileges"


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """One container; `user` is `uid:gid`, or empty for the image's own. Without `init`, `argv` is its process 1.

    It has no capability but `cap_add`, and nothing in it gets more than it was started with. `network` is one of the
    engine's, or `OWN_NETWORK`. `published_ports` are published on the engine machine's loopback. Sizes are in GiB; 0
    means no limit, for `shm_gib` the engine's own.
    """

    image: str
    name: str
    argv: tuple[str, ...]
    labels: Mapping[str, str]
    network: str
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    shm_gib: float = 0.0
    memory_gib: float = 0.0
    cpus: float = 0.0
    pids: int = 0
    user: str = ""
    ulimits: Mapping[str, str] = field(default_factory=dict)
    cap_add: tuple[str, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    gpus: GpuAccess = NO_GPUS
    init: bool = True
    published_ports: tuple[int, ...] = ()


def plan_container(
    image: str,
    defaults: ContainerDefaults,
    *,
    name: str,
    argv: tuple[str, ...],
    env: Mapping[str, str],
    labels: Mapping[str, str],
    data_dir: str,
    caller_uid_gid: str,
    ca_bundle: str = "",
    gpus: GpuAccess = NO_GPUS,
    init: bool = True,
    mounts: tuple[Mount, ...] = (),
) -> ContainerPlan:
    """Return the container that runs `argv` in `image` with the data disk `data_dir` (a host path) mounted.

    `caller_uid_gid` is used unless the target asks for root. `ca_bundle` is the host path of the site's CA bundle:
    mounted, and named where programs look for it.
    """
    user = caller_uid_gid if defaults.user == "caller" and caller_uid_gid != "0:0" else ""
    return ContainerPlan(
        image=image,
        name=name,
        argv=argv,
        env={**(dict.fromkeys(CA_VARIABLES, CA_BUNDLE_IN_CONTAINER) if ca_bundle else {}), **gpus.env, **env},
        labels=dict(labels),
        mounts=(
            Mount(source=data_dir, target=defaults.disk_mount),
            *((Mount(source=ca_bundle, target=CA_BUNDLE_IN_CONTAINER, read_only=True),) if ca_bundle else ()),
            *mounts,
        ),
        network=defaults.network,
        shm_gib=defaults.shm_gib,
        memory_gib=defaults.memory_gib,
        cpus=defaults.cpus,
        pids=defaults.pids,
        user=user,
        ulimits=defaults.ulimits,
        cap_add=defaults.cap_add if user else tuple(sorted({*DISK_CAPABILITIES, *defaults.cap_add})),
        devices=defaults.devices,
        gpus=gpus,
        init=init,
    )


def format_docker_run_args(plan: ContainerPlan, *, interactive: bool, terminal: bool) -> tuple[str, ...]:
    """Return the words of `docker run` (after `docker`) for a container in the foreground that removes itself."""
    network = plan.name if plan.network == OWN_NETWORK else plan.network
    args = ["run", "--rm", "--init", "--pull=never", f"--name={plan.name}", f"--network={network}"]
    args += ["--cap-drop=ALL", f"--security-opt={_CLOSED}"]
    args += [
        *format_resource_args_without_gpus(plan),
        *_gpu_words(plan.gpus),
        *([f"--user={plan.user}"] if plan.user else []),
    ]
    args += [f"--label={key}={value}" for key, value in sorted(plan.labels.items())]
    args += [f"--env={key}={value}" for key, value in sorted(plan.env.items())]
    args += [f"--volume={m.source}:{m.target}{':ro' if m.read_only else ''}" for m in plan.mounts]
    args += ["--interactive"] if interactive else []
    args += ["--tty"] if terminal else []
    return (*args, plan.image, *plan.argv)


class NetworkCommands(NamedTuple):
    create: tuple[str, ...]
    remove: tuple[str, ...]


def build_own_network_commands_or_empty(plan: ContainerPlan) -> NetworkCommands:
    if plan.network != OWN_NETWORK:
        return NetworkCommands((), ())
    labels = tuple(f"--label={key}={value}" for key, value in sorted({**plan.labels, NETWORK_LABEL: plan.name}.items()))
    create = ("docker", "network", "create", "--driver=bridge", *labels, plan.name)
    return NetworkCommands(create, ("docker", "network", "rm", plan.name))


def format_resource_args_without_gpus(container: ContainerPlan | ContainerDefaults) -> list[str]:
    args = [f"--shm-size={_bytes(container.shm_gib)}"]
    if container.memory_gib:  # without the second option as much again may be swapped
        args += [f"--memory={_bytes(container.memory_gib)}", f"--memory-swap={_bytes(container.memory_gib)}"]
    args += [f"--cpus={container.cpus:g}"] if container.cpus else []
    args += [f"--pids-limit={container.pids}"] if container.pids else []
    args += [f"--ulimit={name}={limit}" for name, limit in sorted(container.ulimits.items())]
    args += [f"--cap-add={name}" for name in container.cap_add]
    return args + [f"--device={row}" for row in format_device_mappings(container)]


def format_device_mappings(container: ContainerPlan | ContainerDefaults) -> list[str]:
    """Return the devices of a container as engines name them: path here, path there, what may be done with it.

    An engine takes a folder for all devices in it; source: moby oci/devices_linux.go, `DevicesFromPath`.
    """
    return [f"{path}:{path}:{use}" for path, use in sorted(container.devices.items())]


def _gpu_words(gpus: GpuAccess) -> list[str]:
    if gpus.method == "gpus":  # a list is one field of CSV
        return [f"--gpus={gpus.names[0]}" if gpus.by_count else f'--gpus="device={",".join(gpus.names)}"']
    return [f"--device={name}" for name in gpus.names]


def create_docker_py_options(plan: ContainerPlan) -> dict[str, object]:
    return {
        "image": plan.image,
        "command": list(plan.argv),
        "name": plan.name,
        "environment": dict(plan.env),
        "labels": dict(plan.labels),
        "volumes": {m.source: {"bind": m.target, "mode": "ro" if m.read_only else "rw"} for m in plan.mounts},
        "network_mode": plan.name if plan.network == OWN_NETWORK else plan.network,
        "ports": {f"{port}/tcp": (LOOPBACK, port) for port in plan.published_ports},
        "shm_size": _bytes(plan.shm_gib) or None,
        "mem_limit": _bytes(plan.memory_gib) if plan.memory_gib else None,
        "memswap_limit": _bytes(plan.memory_gib) if plan.memory_gib else None,
        "nano_cpus": int(plan.cpus * 1e9) if plan.cpus else None,
        "pids_limit": plan.pids or None,
        "user": plan.user or None,
        "ulimits": [_ulimit(name, limit) for name, limit in sorted(plan.ulimits.items())],
        "cap_drop": ["ALL"],
        "cap_add": list(plan.cap_add),
        "init": plan.init,
        "security_opt": [_CLOSED],
        "detach": True,
        "devices": format_device_mappings(plan),
        **_gpu_options(plan.gpus),
    }


def _gpu_options(gpus: GpuAccess) -> dict[str, object]:
    """Return docker-py's arguments for the GPUs; requests in the words of the engine's API, since 1.40."""
    match gpus.method:
        case "cdi":
            return {"device_requests": [{"Driver": "cdi", "DeviceIDs": list(gpus.names)}]}
        case "gpus":
            number = {"Count": -1 if gpus.names[0] == "all" else int(gpus.names[0])} if gpus.by_count else {}
            ids = {} if gpus.by_count else {"DeviceIDs": list(gpus.names)}
            return {"device_requests": [{"Driver": "", "Capabilities": [["gpu"]], **number, **ids}]}
        case _:
            return {}


def _ulimit(name: str, limit: str) -> dict[str, object]:
    soft, _, hard = limit.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}


def _bytes(gib: float) -> int:
    return int(gib * (1 << 30))
