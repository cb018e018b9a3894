"""Install and start a Docker engine, and report its state."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import decimal_size_text
from rlbox.engine.address import REMOTE_ENGINE_NEXT_STEP, find_engine_url, is_engine_on_unix_socket
from rlbox.engine.connection import connect_engine
from rlbox.errors import EngineError, EngineUnavailable
from rlbox.i18n import _, join
from rlbox.system.command import DEVNULL, PIPE, run_command, run_command_or_raise, start_command
from rlbox.values import Command

_SNAPSHOTTER = "io.containerd.snapshotter.v1"


@dataclass(frozen=True, kw_only=True)
class EngineStatus:
    """An engine; `version` is empty where none answers, `free_bytes` None where its disk is not here."""

    engine_address: str
    version: str = ""
    has_containerd_store: bool = False
    storage_driver: str = ""
    docker_root_dir: str = ""
    free_bytes: int | None = None
    missing_setup_steps: tuple[str, ...] = ()

    @property
    def is_running_and_set_up(self) -> bool:
        return bool(self.version) and not self.missing_setup_steps

    def to_json(self) -> dict[str, Any]:
        return {
            "place": self.engine_address,
            "version": self.version,
            "keeps_bytes": self.has_containerd_store,
            "driver": self.storage_driver,
            "folder": self.docker_root_dir,
            "free_bytes": self.free_bytes,
            "left": list(self.missing_setup_steps),
            "ready": self.is_running_and_set_up,
        }

    def format(self) -> str:
        title = _("engine {version} at {address}") if self.version else _("cannot connect to Docker at {address}")
        lines: list[str] = [title.format(version=self.version, address=self.engine_address)]
        if self.version:
            store = _("the containerd store")
            if not self.has_containerd_store:
                store = _("docker's own store, which keeps no manifests")
            text = _("images in {folder}: {store} ({driver})")
            if self.free_bytes is not None:
                text = _("images in {folder}, {free} free: {store} ({driver})")
            free = decimal_size_text(self.free_bytes or 0)
            lines.append(text.format(folder=self.docker_root_dir, free=free, store=store, driver=self.storage_driver))
        lines += [_("to do: {step}").format(step=step) for step in self.missing_setup_steps]
        if self.missing_setup_steps:
            can_be_started = self.version or self.engine_address.startswith("unix:")
            step = "rlbox engine up" if can_be_started else REMOTE_ENGINE_NEXT_STEP
            lines.append(_("next: {command}").format(command=step))
        return join("\n", lines)


def parse_engine_info(
    engine_address: str, info: Mapping[str, Any], free_bytes: int | None, missing_setup_steps: tuple[str, ...]
) -> EngineStatus:
    told = {str(pair[0]): str(pair[1]) for pair in info.get("DriverStatus") or () if len(pair) == 2}
    return EngineStatus(
        engine_address=engine_address,
        version=str(info.get("ServerVersion", "")),
        has_containerd_store=told.get("driver-type") == _SNAPSHOTTER,
        storage_driver=str(info.get("Driver", "")),
        docker_root_dir=str(info.get("DockerRootDir", "")),
        free_bytes=free_bytes,
        missing_setup_steps=missing_setup_steps,
    )


_SCRIPT = str(Path(__file__).with_name("programs") / "ensure-engine.sh")
_ERROR = re.compile(r"error: (?P<what>.*?); where: (?P<where>.*?); next: (?P<next_step>.*)")
_SAYS = "ensure-engine: "


def install_and_start_engine_and_build_tools(on_message: Callable[[str], None]) -> None:
    """Start an engine, and install what it and builds need, where missing; `on_message` gets each line of talk."""
    try:
        process = start_command(Command(argv=("bash", _SCRIPT)), stdout=DEVNULL, stderr=PIPE, new_session=False)
    except OSError as error:
        raise EngineError(
            _("bash cannot be started: {strerror}").format(strerror=error.strerror), where=_SCRIPT
        ) from error
    assert process.stderr is not None  # noqa: S101  (it is a pipe)
    failed = None
    with process.stderr:
        for raw in process.stderr:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if told := _script_error(line):
                failed = told
            else:
                on_message(line.removeprefix(_SAYS))
    if code := process.wait():
        raise failed or EngineError(
            _("the engine could not be started (exit code {code})").format(code=code), where=_SCRIPT
        )


def describe_missing_setup_steps() -> tuple[str, ...]:
    """Return what the set-up would do, a line each, or raise what it would, as far as that is known."""
    outcome = run_command(Command(argv=("bash", _SCRIPT, "--dry-run")))
    if outcome.exit_code:
        raise _script_error(outcome.stderr) or EngineError(_("the engine cannot be looked for"), where=_SCRIPT)
    return tuple(map(_translatable_step, outcome.stdout.splitlines()))


def _translatable_step(line: str) -> str:
    """Return a step of the script, whose texts are here for their translation."""
    texts = (
        _("start the engine"),
        _("bring an engine and start it"),
        _("bring a docker client that speaks BuildKit"),
        _("install a newer keyring of Debian"),
    )
    known = next((text for text in texts if text == line), None)
    packages = line.removeprefix("install ")
    return known or (line if packages == line else _("install {packages}").format(packages=packages))


def _script_error(words: str) -> EngineError | None:
    lines = [line.removeprefix(_SAYS) for line in words.splitlines()]
    found = [told for line in lines if (told := _ERROR.fullmatch(line))]
    return EngineError(found[-1]["what"], where=found[-1]["where"], next_step=found[-1]["next_step"]) if found else None


def probe_engine_version_and_setup() -> EngineStatus:
    address = find_engine_url()
    check = run_command_or_raise(Command(argv=("bash", _SCRIPT, "--check")), "the engine cannot be looked for")
    missing = tuple(map(_translatable_step, check.stdout.splitlines()))
    try:
        info = connect_engine().info()
    except EngineUnavailable:
        return EngineStatus(engine_address=address, missing_setup_steps=missing)
    free_bytes = None
    with contextlib.suppress(OSError):  # only root sees it
        free_bytes = shutil.disk_usage(str(info.get("DockerRootDir", ""))).free if is_engine_on_unix_socket() else None
    return parse_engine_info(address, info, free_bytes, missing)
