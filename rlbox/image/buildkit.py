"""The build command, and the reading of what BuildKit says while it runs."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from rlbox.amounts import duration_text
from rlbox.app import App
from rlbox.engine.address import create_missing_docker_cli_error, resolve_engine_address_opening_tunnel
from rlbox.engine.connection import connect_engine
from rlbox.errors import EngineError, Interrupted, WorkFailed
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.command import PIPE, STDOUT, start_command
from rlbox.system.files import cache_path
from rlbox.system.network_settings import NetworkSettings
from rlbox.system.progress import ProgressItem, show_progress
from rlbox.values import Command

BASE_CONTEXT_NAME = "rlbox-base"
MIN_ENGINE_FOR_LINKED_COPIES = (23,)
"""The first engine whose BuildKit has them (0.10; source: Docker Engine 23.0 release notes)."""

# zstd at level 3 makes smaller layers than gzip in half of its time. Provenance inside the image would give every build
# another digest.
_OUTPUT = ("--output=type=image,compression=zstd,compression-level=3,oci-mediatypes=true", "--provenance=false")


def adapt_dockerfile_to_engine_and_base_context(
    dockerfile: str, engine_version: tuple[int, ...], base_image_replaced_by_context: str = ""
) -> str:
    """Return the Dockerfile as an engine's own BuildKit reads it: before 23 it knows no linked copies.

    The image has the same files then, but a changed layer takes all above it along, and the engine promises no digest.

    `base_image_replaced_by_context`: The base image, when it is to be taken from the named context `BASE_CONTEXT_NAME`;
      empty otherwise.
    """
    if base_image_replaced_by_context:
        dockerfile = dockerfile.replace(f"FROM {base_image_replaced_by_context} AS", f"FROM {BASE_CONTEXT_NAME} AS")
    return (
        dockerfile.replace("COPY --link ", "COPY ")
        if engine_version and engine_version < MIN_ENGINE_FOR_LINKED_COPIES
        else dockerfile
    )


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """How one build is run.

    `labels`: Those that an image gets besides the Dockerfile's, among them the one by which an unchanged image is
      recognised.
    `network`: Of every step: `host`, `default`, `none`.
    `step_env`: Settings of pip and uv for its steps.
    `base_image_context_url`: Where BuildKit gets the base image: `docker-image://NAME@…` or `oci-layout://FOLDER@…`;
      None where the Dockerfile names it.
    """

    context_dir: Path
    tag: str
    labels: Mapping[str, str]
    network: str
    epoch: int
    step_env: Mapping[str, str]
    network_settings: NetworkSettings
    use_cache: bool = True
    base_image_context_url: str | None = None


def plan_build_command(
    request: BuildRequest, buildx: str, step_env_file: str, metadata_file: str | None = None
) -> Command:
    """Return the command that builds and tags the image; its steps read `step_env_file`.

    The mirror settings and the CA bundle are secrets: they are part of no layer, no history and no cache key.
    """
    settings, base = request.network_settings, request.base_image_context_url
    secrets = [("sources", step_env_file), ("ca", settings.ca_bundle)]
    argv = [
        *(buildx, "build", *_OUTPUT),
        "--progress=plain",
        f"--network={request.network}",
        f"--tag={request.tag}",
        *(f"--label={name}={value}" for name, value in request.labels.items()),
        f"--build-arg=SOURCE_DATE_EPOCH={request.epoch}",
        *(("--metadata-file", metadata_file) if metadata_file else ()),
        *((f"--build-context={BASE_CONTEXT_NAME}={base}",) if base else ()),
        *(f"--build-arg={name}" for name in sorted(settings.proxy_env)),  # values may hold passwords: they stay outside
        *(word for name, path in secrets if path for word in ("--secret", f"id={name},src={path}")),
        *(() if request.use_cache else ("--no-cache",)),
        str(request.context_dir),
    ]
    return Command(argv=tuple(argv))


@dataclass(frozen=True, kw_only=True)
class BuildStep:
    """One step of a build; `state` is running, done, cached or failed, `seconds` is known once it ended."""

    number: int
    name: str
    state: Literal["running", "done", "cached", "failed"] = "running"
    seconds: float | None = None


class BuildLogParser:
    """Follows BuildKit's plain progress, line by line.

    Source: the plain format is the same from BuildKit 0.8 (Docker 20.10) on: `#5 [base 2/6] RUN …`, `#5 CACHED`,
    `#5 DONE 1.2s`, `#5 ERROR: …`, and `#5 0.123 text` for a step's own output.
    """

    _LINE = re.compile(r"^#(?P<number>\d+) (?P<rest>.*)$")
    _DONE = re.compile(r"^DONE (?P<seconds>[0-9.]+)s$")
    _MOUNT = re.compile(r"--(?:mount|network|security)=\S+\s+")

    def __init__(self) -> None:
        self.steps: dict[int, BuildStep] = {}

    def parse_step_change(self, line: str) -> BuildStep | None:
        """Take one line; return the step that began or ended with it, if one did."""
        match = self._LINE.match(line.rstrip())
        if not match:
            return None
        number, rest = int(match["number"]), match["rest"]
        if number == 0:  # the client speaks of itself: `#0 building with "default" instance using docker driver`
            return None
        known = self.steps.get(number)
        if known is None:
            self.steps[number] = BuildStep(number=number, name=self._MOUNT.sub("", rest))
            return self.steps[number]
        if done := self._DONE.match(rest):
            step = replace(known, state="done", seconds=float(done["seconds"]))
        elif rest == "CACHED":
            step = replace(known, state="cached", seconds=None)
        elif rest.startswith("ERROR"):
            step = replace(known, state="failed", seconds=None)
        else:
            return None
        self.steps[number] = step
        return None if known.state == step.state else step  # BuildKit may end a step, take it up again, and end it anew


_PASSING = (
    (r"context canceled", _("another build of the same steps was stopped, and the engine stopped them for both")),
    # Source: moby/buildkit#6521, under load.
    (r"parent snapshot \S+ does not exist", _("the engine lost a layer while it unpacked the image")),
)


def _find_transient_failure_reason(client_output: str) -> str | None:
    """Return why a build that said `client_output` failed, if that was none of its own doing.

    Only the client's last word counts, never what a step wrote.
    """
    last = "\n".join(re.findall(r"^(?:ERROR: )?failed to .*", client_output, re.M))
    return next((why for sign, why in _PASSING if re.search(sign, last)), None)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What was asked of a build; `forced_stack_conflict` is the contradiction of its stack that `--force`
    overrides.
    """

    no_cache: bool = False
    rebuild: bool = False
    hermetic: bool = False
    verify: bool = False
    sources_profile: str = ""
    forced_stack_conflict: str = ""


_ATTEMPTS = 3
_MARKS = {"running": "", "done": "✓", "cached": "=", "failed": "✗"}
# Where docker clients look for plugins, besides the user's own configuration folder.
_PLUGIN_FOLDERS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)


def find_buildx_path_or_raise() -> str:
    """Return the path of the buildx plugin; `EngineError` where there is none, or no docker client.

    It is started by itself, because the client takes as long to start it as the engine to find that nothing changed.
    """
    clients = [path for folder in os.get_exec_path() if os.access(path := os.path.join(folder, "docker"), os.X_OK)]
    if not clients:
        raise create_missing_docker_cli_error()
    config = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    for folder in (f"{config}/cli-plugins", *_PLUGIN_FOLDERS):
        if os.access(plugin := f"{folder}/docker-buildx", os.X_OK):
            return plugin
    raise EngineError(
        _("no docker client here can drive BuildKit: the buildx plugin is missing"),
        where=", ".join(clients),
        next_step=_("install the buildx plugin (packages: docker-buildx, docker-buildx-plugin)"),
    )


class LogPathAndManifestDigest(NamedTuple):
    log_path: Path
    manifest_digest: str


def build_image(
    target: str, request: BuildRequest, on_step: Callable[[BuildStep], None], print_retry_reason: Callable[[str], None]
) -> LogPathAndManifestDigest:
    """Build and tag the image; `print_retry_reason` is told why a build is repeated that failed by no fault of its own.

    Raises WorkFailed: A step failed: names it, quotes its last lines, gives the log's path.
    Raises Interrupted: Ctrl-C: the client is ended, the engine stops the build.
    """
    buildx = find_buildx_path_or_raise()
    log_path = cache_path("logs", f"build-{target}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.log")
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rlbox-build-") as scratch:
        settings, metadata = Path(scratch, "sources.env"), Path(scratch, "metadata.json")
        settings.write_text(
            "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(request.step_env.items()))
        )
        settings.chmod(0o600)
        command = plan_build_command(request, buildx, str(settings), str(metadata))
        command = replace(command, env={"DOCKER_HOST": resolve_engine_address_opening_tunnel()})
        _build(command, request.tag, log_path, on_step, print_retry_reason)
        return LogPathAndManifestDigest(
            log_path, str(parse_untrusted_json(metadata.read_bytes()).get("containerimage.digest", ""))
        )


@contextmanager
def show_build_progress(app: App) -> Iterator[Callable[[BuildStep], None]]:
    """Yield a function to be told of every step that begins or ends; the client's own housekeeping is not shown."""
    with show_progress(app, in_bytes=False) as show:

        def on_step(step: BuildStep) -> None:
            if not step.name.startswith("[internal]") or step.state == "failed":
                told = "" if step.seconds is None else duration_text(step.seconds)
                show(ProgressItem(key=step.number, title=step.name[:100], mark=_MARKS[step.state], status_text=told))

        yield on_step


def _build(
    command: Command, tag: str, log: Path, on_step: Callable[[BuildStep], None], say: Callable[[str], None]
) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        code, text, failed = _follow(command, log, on_step)
        if not code:
            return
        if failed and failed.name.startswith("exporting"):  # the tag was set before
            connect_engine().try_remove_image_by_tag(tag)
        why = _find_transient_failure_reason(text)
        if attempt == _ATTEMPTS or not why:
            raise _build_error(text, failed, code, log)
        text = _("{why}; building again (attempt {attempt} of {attempts})")
        say(text.format(why=why, attempt=attempt + 1, attempts=_ATTEMPTS))


def _follow(
    command: Command, log_path: Path, on_step: Callable[[BuildStep], None]
) -> tuple[int, str, BuildStep | None]:
    follower, said = BuildLogParser(), []
    with open(log_path, "ab") as log, start_command(command, stdout=PIPE, stderr=STDOUT, new_session=False) as process:
        try:
            for raw in process.stdout or ():
                log.write(raw)
                said.append(raw.decode("utf-8", "replace"))
                if step := follower.parse_step_change(said[-1]):
                    on_step(step)
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise Interrupted(_("the build was stopped; its finished steps stay in the engine's cache")) from None
    failed = next((step for step in follower.steps.values() if step.state == "failed"), None)
    return code, "".join(said), failed


def _build_error(text: str, failed: BuildStep | None, code: int, log_path: Path) -> WorkFailed | EngineError:
    lines = text.splitlines()
    if failed is None:
        text = "\n".join(lines[-5:])
        if "Cannot connect to the Docker daemon" in text or "permission denied" in text:
            return EngineError(text, next_step=_("`docker info` shows whether this user reaches the engine"))
        return WorkFailed(
            _("the build failed (exit code {code})\n{text}").format(code=code, text=text),
            next_step=_("full log: {log_path}").format(log_path=log_path),
        )
    mine = [line for line in lines if line.startswith(f"#{failed.number} ") and " RUN --mount" not in line]
    quoted = "\n".join(f"  | {line.partition(' ')[2]}" for line in mine[-12:])
    return WorkFailed(
        _("build step failed: {failed}\n{quoted}").format(failed=failed.name, quoted=quoted),
        next_step=_("full log: {log_path}").format(log_path=log_path),
    )
