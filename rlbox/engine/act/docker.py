"""The Docker engine through docker-py: containers are started, waited for, stopped and removed here, nowhere else."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from rlbox.engine.act.address import engine_address, engine_unreachable
from rlbox.engine.container import ContainerPlan, engine_options
from rlbox.errors import EngineError
from rlbox.secrets.act.hand_over import send_secrets
from rlbox.values import Secret

_CONFLICT = 409
_ABOUT_GPUS = ("could not select device driver", "CDI device", "/dev/nvidia", "nvidia-container")
_GPU_STEP = "rlbox doctor TARGET tells what it offers; without GPUs: --gpus none"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a container ended; `output` is the tail of what it wrote itself (not its processes' log files)."""

    exit_code: int
    out_of_memory: bool
    output: str


class DockerEngine:
    """One engine, spoken to through docker-py."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    @classmethod
    def connect(cls, address: str = "") -> DockerEngine:
        """Return the engine at `address`, by default `engine_address`; `EngineError` when it does not answer."""
        address = address or engine_address()
        try:
            client = docker.DockerClient(base_url=address, timeout=60, use_ssh_client=False)
            client.ping()
        except (DockerException, OSError) as error:
            raise engine_unreachable(address, error) from error
        return cls(client)

    def find_image(self, tag: str) -> dict[str, Any] | None:
        """Return the engine's description of an image, or None."""
        try:
            return self._client.images.get(tag).attrs
        except ImageNotFound:
            return None

    def version(self) -> dict[str, Any]:
        """Return what the engine says of its version."""
        return dict(self._client.version())

    def info(self) -> dict[str, Any]:
        """Return what the engine says of itself and its machine."""
        return dict(self._client.info())

    def list_containers(self, label: str) -> list[dict[str, Any]]:
        """Return the engine's descriptions of all containers, running or not, that carry a label."""
        return list(self._client.api.containers(all=True, filters={"label": label}))

    def save(self, tag: str) -> Iterator[bytes]:
        """Yield the archive of an image, as `docker save` writes it."""
        try:
            yield from self._client.api.get_image(tag)
        except (APIError, ImageNotFound) as error:
            raise EngineError(f"the engine does not hand out {tag}: {error.explanation or error}") from error

    def read_file(self, image: str, path: str) -> bytes | None:
        """Return a file of an image, or None when it has none there; the container it is read from never starts."""
        try:
            container = self._client.containers.create(
                image, command=["true"], labels={"rlbox.read": path}, network_disabled=True
            )
        except (APIError, ImageNotFound) as error:
            raise EngineError(f"the engine does not open {image}: {error.explanation or error}") from error
        try:
            chunks, _ = container.get_archive(path)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
                file = tar.extractfile(tar.getmembers()[0])
                return file.read() if file else None
        except NotFound:
            return None
        finally:
            container.remove(v=True, force=True)

    def remove_tag(self, tag: str) -> None:
        """Take a tag of ours off its image; an image without one goes, its layers stay in the build cache."""
        with contextlib.suppress(APIError, ImageNotFound):
            self._client.images.remove(tag, noprune=True)

    def start(self, plan: ContainerPlan, secrets: Mapping[str, Secret] | None = None) -> str:
        """Create and start the container and return its id; on failure none is left behind.

        Parameters
        ----------
        secrets
            Sent over the container's standard input, which is attached before it starts; None: it has none.

        Raises
        ------
        EngineError
            The engine refused; its own words are quoted, with what they mean where that is known.
        """
        started = ""
        with self._asked():
            try:
                options = engine_options(plan) | {"stdin_open": bool(secrets)}
                container = self._client.containers.create(**cast(dict[str, Any], options))
                started = str(container.id)
                if secrets:
                    self._start_with(container, secrets)
                else:
                    container.start()
            except (APIError, ImageNotFound) as error:
                if started:
                    self.remove(started)
                raise _refused(plan, str(error.explanation or error)) from error
        return started

    def _start_with(self, container: Any, secrets: Mapping[str, Secret]) -> None:
        """Start a container whose standard input is attached already, and send the secrets."""
        connection = container.attach_socket(params={"stdin": 1, "stream": 1})
        try:
            container.start()
            send_secrets(connection._sock.sendall, secrets)  # the socket below docker-py's read-only file
        finally:
            connection.close()

    def status(self, name: str) -> str | None:
        """Return the state of a container in the engine's word (`running`, `exited`, …), None when there is none."""
        with self._asked():
            try:
                return str(self._client.containers.get(name).status)
            except NotFound:
                return None

    def running(self, name: str) -> bool:
        """Return whether the container still runs; one that is gone does not."""
        return self.status(name) in ("running", "created", "restarting", "paused")

    def ended(self, name: str) -> Ended | None:
        """Return how an ended container ended; None when it is gone, or is just being removed."""
        with self._asked():
            try:
                container = self._client.containers.get(name)
                state = container.attrs["State"]
                output = container.logs(tail=20).decode("utf-8", "replace")
            except NotFound:
                return None
            if state.get("Status") in ("removing", "dead"):
                return None
            code = int(state["ExitCode"])
            return Ended(exit_code=code, out_of_memory=bool(state["OOMKilled"]) and code != 0, output=output)

    def stop(self, name: str, grace_s: int) -> None:
        """Ask the container to end, and end it after `grace_s` seconds."""
        with self._asked(), contextlib.suppress(NotFound):
            self._client.containers.get(name).stop(timeout=grace_s)

    def remove(self, name: str) -> None:
        """Remove a container of ours, running or not; one that somebody else removes at this moment is gone as well."""
        with self._asked(), contextlib.suppress(NotFound):
            try:
                self._client.containers.get(name).remove(force=True, v=True)
            except APIError as error:
                if error.status_code != _CONFLICT:  # "removal of container … is already in progress"
                    raise

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Turn what goes wrong between here and the engine into `EngineError`."""
        try:
            yield
        except (DockerException, OSError) as error:  # requests' errors are OSErrors
            if isinstance(error, NotFound):
                raise
            raise engine_unreachable(self._client.api.base_url, error) from error


def _refused(plan: ContainerPlan, words: str) -> EngineError:
    if "No such image" in words:
        target = plan.image.partition("/")[2].partition(":")[0]
        return EngineError(f"the engine has no image {plan.image}", next_step=f"rlbox build {target}")
    if "error setting rlimit" in words:
        return EngineError(f"the engine may not raise a limit: {words}", next_step="lower it in the target's [run]")
    if any(text in words for text in _ABOUT_GPUS):
        return EngineError(f"the engine does not give the GPUs to the container: {words}", next_step=_GPU_STEP)
    return EngineError(f"the engine refused the container: {words}", where=plan.image)
