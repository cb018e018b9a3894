"""Images of inference engines: the server that they run, the release in their tag, the probes of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from rlbox.foreign import parse_digits

# With `docker run IMAGE ARGUMENTS` the server gets the arguments. Source: ENTRYPOINT of vLLM's Dockerfile.
_SERVER_BY_IMAGE = {r"(?:[\w.-]+(?::\d+)?/)*vllm/vllm-openai(?:[:@].*)?": ("vllm", "serve")}
_WITHOUT_ENTRYPOINT = r"(?:^|/)(?:lmsysorg/sglang|vllm/vllm-omni)(?:[:@]|$)"
_RELEASE_IN_TAG = {
    "vllm": r"(?:^|/)vllm/vllm-openai:v(?P<version>\d+\.\d+\.\d+(?:\.post\d+)?)(?:-cu\d+|-x86_64|-aarch64)*$",
    "sglang": r"(?:^|/)lmsysorg/sglang:v(?P<version>\d+\.\d+\.\d+(?:\.post\d+)?)(?:-cu\d+|-runtime|-amd64|-arm64)*$",
}
_SERVER = re.compile(r"vllm serve|vllm\.entrypoints\.openai\.api_server|(?P<sglang>sglang\.launch_server)")
_SEVERAL_NODES = re.compile(r"\bray\b|--nnodes|--headless")
_PROBES = {"livenessProbe", "readinessProbe", "startupProbe"}
_ARGUMENT = re.compile(r"-|(?!/)(?!bin/)[\w.-]+/[\w.-]+$")  # an option, or a model of the hub


def get_server_command_or_empty(image: str, option_or_program: str) -> tuple[str, ...]:
    """Return the command of an image's entrypoint; empty when the argument is another program."""
    commands = (command for pattern, command in _SERVER_BY_IMAGE.items() if re.fullmatch(pattern, image))
    return next(commands, ()) if _ARGUMENT.match(option_or_program) else ()


def map_packages_to_tagged_version(images: Iterable[str]) -> dict[str, str]:
    """Return the engines' releases by tag, where all images of an engine have the same."""
    tagged: dict[str, set[str]] = {}
    for image in images:
        for package, pattern in _RELEASE_IN_TAG.items():
            if match := re.search(pattern, image):
                tagged.setdefault(package, set()).add(match["version"])
    return {package: versions.pop() for package, versions in tagged.items() if len(versions) == 1}


def list_container_words_for_lint(
    probe_or_image_key: str, probe: Mapping[str, str], command_words: Sequence[str], container_keys: Collection[str]
) -> list[str]:
    """Return what the rules of lint match after the name of a container's key, as if it were a command; may be empty.

    Of a probe: `seconds=N`, after which a failing one ends a server that starts, the probe's `port=N` and `server=N`,
    the server's. Of an `image` without an entrypoint: the image, and the option that it gets in place of a program;
    of one that runs a server without any probe: unprobed.
    """
    command_line = " ".join(command_words)
    if probe_or_image_key == "image":
        if _SERVER.search(command_line) and not _PROBES & {*container_keys} and not _SEVERAL_NODES.search(command_line):
            return ["unprobed"]
        is_without = command_words and re.search(_WITHOUT_ENTRYPOINT, probe.get(probe_or_image_key, ""))
        return [probe[probe_or_image_key], command_words[0]] if is_without and command_words[0].startswith("-") else []
    if (server := _SERVER.search(command_line)) is None:
        return []
    defaults = {"initialDelaySeconds": "0", "periodSeconds": "10", "failureThreshold": "3"}  # of Kubernetes
    delay, period, threshold = (parse_digits(probe.get(name, default)) for name, default in defaults.items())
    facts: list[str] = []
    is_liveness = probe_or_image_key == "livenessProbe" and "startupProbe" not in container_keys
    if is_liveness and delay is not None and period is not None and threshold is not None:
        facts.append(f"seconds={delay + period * threshold}")
    ports = re.findall(r"--port[= ](\S+)", command_line) or ["30000" if server["sglang"] else "8000"]
    if "port" in probe and len(ports) == 1 and not _SEVERAL_NODES.search(command_line):
        facts += [f"port={probe['port']}", f"server={ports[0]}"]
    return facts
