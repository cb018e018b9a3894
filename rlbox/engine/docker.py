"""Client of the Docker engine, over docker-py: images, containers and their own networks, pushes, archives."""

from __future__ import annotations

import contextlib
import io
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from http.client import HTTPException
from typing import Any, cast

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, StreamParseError
from requests.exceptions import ConnectionError as BrokenOff
from requests.exceptions import JSONDecodeError, ReadTimeout

from rlbox.amounts import exact_duration_text
from rlbox.engine.address import create_engine_unreachable_error, resolve_engine_address_opening_tunnel
from rlbox.engine.container import (
    ACTIVE_STATES,
    LOOPBACK,
    NETWORK_LABEL,
    OWN_NETWORK,
    OWNER_LABEL,
    ContainerDefaults,
    ContainerPlan,
    create_docker_py_options,
)
from rlbox.engine.reference import ImageReference
from rlbox.errors import EngineError, TimedOut
from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.secrets.handover import try_send_secrets
from rlbox.values import Command, Outcome, Secret

_MADE_LABEL = "rlbox.made"
_BRIDGE = "bridge"
_FRESH_S = 120.0
"""How long a network may be without its container, which is made next."""

_NETWORK_STEP = _(
    "remove networks that nobody uses (docker network prune), or restart the engine, which creates its bridges and "
    'firewall rules again; or run.network = "host" in the target, which opens the container to anyone who can reach '
    "this machine"
)


def _create_container_network(client: docker.DockerClient, container_name: str, labels: Mapping[str, str]) -> None:
    _remove_stale_networks(client, labels.get(OWNER_LABEL, ""))
    _remove_container_network(client, container_name)
    known = {**labels, NETWORK_LABEL: container_name, _MADE_LABEL: f"{time.time():.0f}"}
    try:
        client.api.create_network(container_name, driver=_BRIDGE, labels=known)
    except APIError as error:
        what = _("the engine cannot make a network for the container: {words}").format(words=error.explanation or error)
        raise EngineError(what, where=container_name, next_step=_NETWORK_STEP) from error


def _remove_container_network(client: docker.DockerClient, container_name: str) -> None:
    for network in client.networks.list(filters={"label": f"{NETWORK_LABEL}={container_name}"}):
        with contextlib.suppress(APIError):  # gone by now, or somebody put a container of theirs into it
            network.remove()


def _remove_stale_networks(client: docker.DockerClient, owner: str) -> None:
    """Remove what a killed rlbox of this user left; the engine refuses for those in which a container runs."""
    for network in client.networks.list(filters={"label": [NETWORK_LABEL, f"{OWNER_LABEL}={owner}"]}):
        made = parse_digits(str((network.attrs.get("Labels") or {}).get(_MADE_LABEL, "")))
        if made is not None and abs(time.time() - made) > _FRESH_S:
            with contextlib.suppress(APIError):
                network.remove()


_ANSWER_S = 60
_SILENCE_S = 1800  # unpacking one layer of several gigabytes says nothing meanwhile
_CONFLICT = 409
_ABOUT_GPUS = ("could not select device driver", "CDI device", "/dev/nvidia", "nvidia-container")
_TAKEN = re.compile(rf"{re.escape(LOOPBACK)}:(\d+)")
_GPU_STEP = _("rlbox doctor TARGET prints the available GPUs; without GPUs: --gpus none")


@dataclass(frozen=True, kw_only=True)
class ContainerInfo:
    """A container: its state in the engine's word (`running`, `exited`, …), its labels, when it was last started."""

    status: str
    labels: Mapping[str, str]
    started_at: str
    exit_code: int
    out_of_memory: bool


class PortTakenError(EngineError):
    """Ports that a container was to publish are taken on the engine's machine; `ports` are those that it named."""

    def __init__(self, what: str, *, ports: Iterable[int]) -> None:
        super().__init__(what)
        self.ports = frozenset(ports)


@cache
def _client(address: str) -> docker.DockerClient:
    return docker.DockerClient(base_url=address, timeout=_ANSWER_S)


class DockerEngine:
    def __init__(self, client: docker.DockerClient, address: str) -> None:
        self._client, self._address = client, address

    @classmethod
    def connect(cls, address: str = "") -> DockerEngine:
        """Return the engine at `address` (or `resolve_engine_address_opening_tunnel`); `EngineError` without answer."""
        address = address or resolve_engine_address_opening_tunnel()
        try:
            return cls(_client(address), address)
        except (DockerException, OSError) as error:
            raise create_engine_unreachable_error(address, error) from error

    def find_image(self, tag: str) -> dict[str, Any] | None:
        """Return the engine's description of an image (`Id`, `Config.Labels`, `Size`, …), or None when it has none."""
        with self._asked():
            try:
                return dict(self._client.images.get(tag).attrs)
            except ImageNotFound:
                return None

    def list_images_with_label(self, label: str) -> list[dict[str, Any]]:
        """Return the engine's rows (`Id`, `RepoTags`, `Labels`, `Size`) of images with a label, or `NAME=VALUE`."""
        with self._asked():
            return list(self._client.api.images(filters={"label": label}))

    def image_history(self, image: str) -> list[dict[str, Any]]:
        with self._asked():
            return list(self._client.images.get(image).history())

    def version(self) -> str:
        with self._asked():
            return str(self._client.version().get("Version", ""))

    def info(self) -> dict[str, Any]:
        with self._asked():
            return dict(self._client.info())

    def list_all_containers_with_label(self, label: str) -> list[dict[str, Any]]:
        with self._asked():
            return list(self._client.api.containers(all=True, filters={"label": label}))

    def export_image(self, tag: str) -> Iterator[bytes]:
        with self._heard():
            yield from self._client.api.get_image(tag)

    def load_image(self, chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        with self._heard():
            api: Any = self._client.api
            yield from api.load_image(chunks, quiet=True)

    def push_image(self, reference: ImageReference, login: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Have the engine push the image of this name, with a login of `read_docker_login`, and yield what it says."""
        with self._heard():
            message = self._client.api.push(
                reference.name_without_tag, reference.tag, stream=True, decode=True, auth_config=dict(login) or None
            )
            yield from cast(Iterator[dict[str, Any]], message)

    def tag_image(self, image: str, reference: ImageReference) -> None:
        with self._asked():
            self._client.api.tag(image, reference.name_without_tag, reference.tag)

    def read_image_file(self, image: str, path: str) -> bytes | None:
        """Return a file of an image, or None when it has none there; the container it is read from never starts."""
        with self._asked():
            container = self._client.containers.create(
                image, command=["true"], labels={"rlbox.read": path}, network_disabled=True
            )
            try:
                chunks, __ = container.get_archive(path)
                with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
                    file = tar.extractfile(tar.getmembers()[0])
                    return file.read() if file else None
            except NotFound:
                return None
            finally:
                container.remove(v=True, force=True)

    def try_remove_image_by_tag(self, tag: str) -> None:
        """Take a tag off its image, whose last one removes it: that takes minutes, and the engine goes on by itself."""
        with contextlib.suppress(APIError, OSError):
            self._client.images.remove(tag, noprune=True)

    def remove_image_if_exists(self, name: str) -> None:
        with self._asked(), contextlib.suppress(ImageNotFound):
            self._client.api.remove_image(name)

    def use_host_network_if_no_bridge(self, defaults: ContainerDefaults) -> ContainerDefaults:
        """Return the limits with a network that containers can have: the host's in an engine with `--bridge none`."""
        with self._asked():
            if defaults.network == OWN_NETWORK:
                bridges = self._client.networks.list(names=[_BRIDGE], filters={"driver": _BRIDGE})
                if not any(network.name == _BRIDGE for network in bridges):
                    return replace(defaults, network="host")
        return defaults

    def create_and_start_container_and_network(
        self, plan: ContainerPlan, stdin_secrets: Mapping[str, Secret] | None = None
    ) -> str:
        """Create and start the container, its own network before it, and return its id; on failure none is left behind.

        `stdin_secrets`: Sent over the container's standard input, which is attached before it starts.
        Raises PortTakenError: a published port is taken.
        """
        made: list[Any] = []
        with self._asked():
            try:
                if plan.network == OWN_NETWORK:
                    _create_container_network(self._client, plan.name, plan.labels)
                options = create_docker_py_options(plan) | {"stdin_open": bool(stdin_secrets)}
                made.append(container := self._client.containers.create(**cast(dict[str, Any], options)))
                if stdin_secrets:
                    self._start_with(container, stdin_secrets)
                else:
                    container.start()
            except (APIError, ImageNotFound) as error:
                for one in made:
                    self.remove_container_and_network(one.id)
                _remove_container_network(self._client, plan.name)
                raise _create_start_error(plan, str(error.explanation or error)) from error
        return str(container.id)

    @contextlib.contextmanager
    def create_temporary_network_if_own(self, plan: ContainerPlan) -> Iterator[None]:
        if plan.network != OWN_NETWORK:
            yield
            return
        with self._asked():
            _create_container_network(self._client, plan.name, plan.labels)
        try:
            yield
        finally:
            with self._asked():
                _remove_container_network(self._client, plan.name)

    def _start_with(self, container: Any, secrets: Mapping[str, Secret]) -> None:
        connection = container.attach_socket(params={"stdin": 1, "stream": 1})
        try:
            container.start()
            try_send_secrets(connection._sock.sendall, secrets)  # the socket below docker-py's read-only file
        finally:
            connection.close()

    def inspect_container(self, name: str) -> ContainerInfo | None:
        with self._asked():
            try:
                container = self._client.containers.get(name)
            except NotFound:
                return None
            state = container.attrs["State"]
            code = int(state.get("ExitCode", 0))
            return ContainerInfo(
                status=str(container.status),
                labels=dict(container.labels),
                started_at=str(state.get("StartedAt", "")),
                exit_code=code,
                out_of_memory=bool(state.get("OOMKilled")) and code != 0,
            )

    def is_container_active(self, name: str) -> bool:
        found = self.inspect_container(name)
        return found is not None and found.status in ACTIVE_STATES

    def read_log(self, name: str, last_lines: int | None = None) -> str | None:
        """Return what a container has said, or the end of that; None when it is gone, or is just being removed."""
        with self._asked():
            try:
                output = self._client.containers.get(name).logs(tail="all" if last_lines is None else last_lines)
                return bytes(output).decode("utf-8", "replace")
            except NotFound:
                return None
            except APIError as error:
                if error.status_code != _CONFLICT:  # "container which is dead or marked for removal"
                    raise
                return None

    def stream_exec_stdout_ignoring_exit(self, name: str, argv: Sequence[str]) -> Iterator[str]:
        with self._heard():
            api: Any = self._client.api
            made = api.exec_create(name, list(argv), stdin=False, stderr=False)
            rest = b""
            for block in api.exec_start(made["Id"], stream=True):
                *lines, rest = (rest + block).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in lines)
            yield from [rest.decode("utf-8", "replace")] if rest else []

    def pull_image(self, reference: ImageReference, login: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        with self._heard():
            named: dict[str, Any] = {"tag": reference.digest or reference.tag, "auth_config": dict(login) or None}
            yield from self._client.api.pull(reference.name_without_tag, stream=True, decode=True, **named)

    def stop_container(self, name: str, grace_s: int) -> None:
        with self._asked(), contextlib.suppress(NotFound):
            self._client.containers.get(name).stop(timeout=grace_s)

    def remove_container_and_network(self, name: str) -> None:
        with self._asked():
            try:
                self._client.containers.get(name).remove(force=True, v=True)
            except NotFound:
                pass
            except APIError as error:
                if error.status_code != _CONFLICT:  # "removal of container … is already in progress"
                    raise
            _remove_container_network(self._client, name)

    def run_and_remove_container(self, plan: ContainerPlan, timeout_s: float) -> Outcome:
        self.create_and_start_container_and_network(plan)
        try:
            with self._asked():
                container = self._client.containers.get(plan.name)
                try:
                    code = int(container.wait(timeout=timeout_s)["StatusCode"])
                except (ReadTimeout, BrokenOff) as error:  # the head of the answer comes before its end
                    if "timed out" not in str(error):
                        raise
                    raise TimedOut(
                        _("{plan} took longer than {timeout_s}").format(
                            plan=plan.name, timeout_s=exact_duration_text(timeout_s)
                        )
                    ) from error
                texts = [container.logs(stdout=out, stderr=not out).decode("utf-8", "replace") for out in (True, False)]
        finally:
            self.remove_container_and_network(plan.name)
        return Outcome(command=Command(argv=plan.argv), exit_code=code, stdout=texts[0], stderr=texts[1])

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except JSONDecodeError as error:
            what = _("this is not a Docker engine: it answered {doc!r}").format(doc=error.doc[:200])
            raise EngineError(what, where=self._address) from error
        except APIError as error:
            raise self._create_refusal(error) from error
        except (DockerException, OSError) as error:  # requests' errors are OSErrors
            raise create_engine_unreachable_error(self._address, error) from error

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Wait long for the next piece of an answer, or of what is sent; an engine that breaks off is an error."""
        api = self._client.api
        api.timeout = _SILENCE_S
        try:
            yield
        except APIError as error:
            raise self._create_refusal(error) from error
        except (DockerException, StreamParseError, HTTPException, OSError) as error:
            raise EngineError(
                _("the engine broke off: {error}").format(error=str(error) or type(error).__name__),
                where=self._address,
                next_step=_("`docker info` shows whether it still runs; then repeat"),
            ) from error
        finally:
            api.timeout = _ANSWER_S

    def _create_refusal(self, error: APIError) -> EngineError:
        words = error.explanation or error
        return EngineError(_("the engine refused: {explanation}").format(explanation=words), where=self._address)


def _create_start_error(plan: ContainerPlan, message: str) -> EngineError:
    if "No such image" in message:
        target = plan.image.partition("/")[2].partition(":")[0]
        return EngineError(
            _("the engine has no image {image}").format(image=plan.image), next_step=f"rlbox build {target}"
        )
    if plan.published_ports and ("already allocated" in message or "already in use" in message):
        named = {int(port) for port in _TAKEN.findall(message)} & {*plan.published_ports}
        what = _("a port to publish is taken on the engine's machine: {words}").format(words=message)
        return PortTakenError(what, ports=named or plan.published_ports)
    if "error setting rlimit" in message:
        what, step = _("the engine may not raise a limit: {words}"), _("lower it in the target's [run]")
        return EngineError(what.format(words=message), next_step=step)
    if any(text in message for text in _ABOUT_GPUS):
        what = _("the engine does not give the GPUs to the container: {words}")
        return EngineError(what.format(words=message), next_step=_GPU_STEP)
    return EngineError(_("the engine refused the container: {words}").format(words=message), where=plan.image)
