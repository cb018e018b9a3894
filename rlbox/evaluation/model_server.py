"""Serve an export by vLLM, started for each and stopped after it, or ask a server that is up, over OpenAI's API.

Prompts are token ids where a server tells them (vLLM's /tokenize).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rlbox.amounts import exact_duration_text
from rlbox.doctor.gpu_inventory import VISIBLE_DEVICES, LocalGpu, probe_local_gpus
from rlbox.evaluation.suites import Decoding
from rlbox.i18n import _
from rlbox.system.command import STDOUT, ProcessHandle, start_command
from rlbox.system.http import HttpClient, NoFullResponseError
from rlbox.system.ports import describe_port_holder_unless_free
from rlbox.values import Command

MAX_SERVERS = 64
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD")
_PARALLEL_SETTINGS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_POLL_S = 0.5
_PORT_TIMEOUT_S = 60.0
_STOP_TIMEOUTS_S = {signal.SIGTERM: 30.0, signal.SIGKILL: 10.0}


class ModelServerError(Exception):
    """A server refused, could not be reached or answered as another model: nothing is known of the model's answer."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A message as the server takes it: token ids, or its text where the server tells none."""

    message: str
    token_ids_or_empty: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """`finish` is the server's (`stop`, `length`), or `too-long` when the prompt leaves no room."""

    text: str
    finish: str
    tokens: int


class ServerReportedModel(NamedTuple):
    """What a server says of its one model: `engine_facts` are what the lock holds."""

    name: str
    loaded_from: str
    engine_facts: Mapping[str, Any]


class MultiServerModelClient:
    """One model behind one or more equal servers; any number of threads may use it.

    Raises `ModelServerError` where the servers are not the same engine.
    """

    def __init__(self, urls: Sequence[str], http: HttpClient) -> None:
        self.urls = [url.rstrip("/") for url in urls]
        self._http = http
        self.model = self._describe(self.urls[0])
        for url in self.urls[1:]:
            if self._describe(url).engine_facts != self.model.engine_facts:
                raise ModelServerError(
                    _("{url} is another engine than {first_url}").format(url=url, first_url=self.urls[0])
                )
        self._tokenizes = True
        self._pending, self._lock = dict.fromkeys(self.urls, 0), threading.Lock()

    def tokenize_if_supported(self, message: str) -> Prompt:
        if self._tokenizes:
            request = {"messages": [{"role": "user", "content": message}], "add_generation_prompt": True}
            status, reply = self._post(self.urls[0], "/tokenize", request)
            if status == 200 and isinstance(reply, dict) and isinstance(reply.get("tokens"), list):
                return Prompt(message=message, token_ids_or_empty=tuple(int(token) for token in reply["tokens"]))
            if status not in (404, 405):
                raise _unexpected(f"{self.urls[0]}/tokenize", status, reply)
            self._tokenizes = False
        return Prompt(message=message)

    def generate(self, prompt: Prompt, decoding: Decoding, sample_index: int) -> ModelAnswer:
        """Return answer `sample_index` to a prompt; it decides the seed of a sampled one."""
        request: dict[str, Any] = {
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "max_tokens": decoding.max_tokens,
            "stop": list(decoding.stop),
        }
        if decoding.temperature > 0:
            request["seed"] = decoding.seed + sample_index
        with self._choose_server() as url:
            if prompt.token_ids_or_empty:
                status, reply = self._post(
                    url, "/v1/completions", request | {"prompt": list(prompt.token_ids_or_empty)}
                )
            else:
                messages = [{"role": "user", "content": prompt.message}]
                status, reply = self._post(url, "/v1/chat/completions", request | {"messages": messages})
        if status == 400 and "maximum context length" in str(reply):
            return ModelAnswer(text="", finish="too-long", tokens=0)
        if status != 200:
            raise _unexpected(url, status, reply)
        return self._parse_answer(url, reply)

    @contextmanager
    def _choose_server(self) -> Iterator[str]:
        with self._lock:
            url = min(self.urls, key=self._pending.__getitem__)
            self._pending[url] += 1
        try:
            yield url
        finally:
            with self._lock:
                self._pending[url] -= 1

    def _parse_answer(self, url: str, reply: Any) -> ModelAnswer:
        try:
            model = str(reply.get("model", self.model.name))
            choice = reply["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            tokens = int((reply.get("usage") or {}).get("completion_tokens") or 0)
            finish = str(choice["finish_reason"])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ModelServerError(
                _("{url}: no answer of OpenAI's API: {name}: {error}").format(
                    url=url, name=type(error).__name__, error=error
                )
            ) from error
        if model != self.model.name:
            raise ModelServerError(
                _("{url}: {said!r} answered, {name!r} was asked").format(url=url, said=model, name=self.model.name)
            )
        return ModelAnswer(text=text or "", finish=finish, tokens=tokens)

    def _describe(self, url: str) -> ServerReportedModel:
        status, reply = self._exchange("GET", f"{url}/v1/models")
        try:
            models = reply["data"]
            names = [str(model["id"]) for model in models]
        except (KeyError, TypeError) as error:
            raise _unexpected(f"{url}/v1/models", status, reply) from error
        if len(names) != 1:
            raise ModelServerError(
                _("{url} serves {count} models ({names}): which would answer?").format(
                    url=url, count=len(names), names=", ".join(names)
                )
            )
        __, version = self._exchange("GET", f"{url}/version")
        engine = {
            "version": version.get("version", "") if isinstance(version, dict) else "",
            "max_model_len": models[0].get("max_model_len"),
        }
        return ServerReportedModel(names[0], str(models[0].get("root") or ""), engine)

    def _post(self, url: str, path: str, content: dict[str, Any]) -> tuple[int, Any]:
        return self._exchange("POST", url + path, json.dumps({"model": self.model.name, **content}).encode())

    def _exchange(self, method: str, url: str, body: bytes = b"") -> tuple[int, Any]:
        """Return status and JSON, or text; a connection that was cut is tried once more: servers close idle ones."""
        headers = {"Content-Type": "application/json"} if body else {}
        for is_retry in (False, True):
            try:
                response = self._http.request(method, url, headers=headers, body=body)
                break
            except (NoFullResponseError, OSError) as error:
                if is_retry or not isinstance(error, NoFullResponseError) or error.kind != "cut":
                    raise ModelServerError(_("{url}: {error}").format(url=url, error=error)) from error
        try:
            return response.status, response.read_json()
        except ValueError:
            return response.status, response.read_body()[:2000].decode("utf-8", "replace")


def _unexpected(url: str, status: int, reply: Any) -> ModelServerError:
    return ModelServerError(_("{url}: status {status}: {found}").format(url=url, status=status, found=str(reply)[:200]))


ServeExport = Callable[[Path, Path], contextlib.AbstractContextManager[MultiServerModelClient]]
"""Serves an export (first path) while the block runs, with its logs in a directory (second path)."""


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """`argv` starts a server, which answers at `url` within `start_timeout_s`; `env` is added to the environment."""

    argv: tuple[str, ...]
    url: str
    start_timeout_s: float
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class InferenceEngineOptions:
    """The server at `url`; without one vLLM of the interpreter `python`, on loopback, with `settings` of its options.

    `servers` share the work, from `port` on, each on free GPUs of its own; 0: as many as GPUs are free.
    """

    url: str = ""
    python: str = ""
    port: int = 8000
    settings: Mapping[str, Any] = field(default_factory=dict)
    start_timeout_s: float = 1800.0
    servers: int = 1


def build_vllm_argv(python: str, export: Path, port: int, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command that serves `export` on loopback.

    The model's own defaults of decoding (`generation_config.json`) are left out: the lock decides.
    """
    options: list[str] = []
    for name, value in sorted(settings.items()):
        flag = "--" + name.replace("_", "-")
        options += [flag] if value is True else [] if value is False else [flag, str(value)]
    return (
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(export), "--served-model-name", "judged"),
        *("--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm", *options),
    )


def describe_own_engine_settings_and_env(external_server_url: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the lock says of an engine beside its version: its settings, and what our environment tells vLLM.

    Of a server at `external_server_url`, which others started, neither is known.
    """
    if external_server_url:
        return {"settings": {}, "environment": {}}
    variables = {name: value for name, value in os.environ.items() if name.startswith("VLLM_")}
    public = {name: value for name, value in variables.items() if not _SECRET.search(name)}
    return {"settings": dict(settings), "environment": public}


def parse_setting_name_and_str_or_bool(text: str) -> tuple[str, str | bool]:
    """Return NAME=VALUE as name and value; `true` and `false` are switches."""
    name, __, value = text.partition("=")
    return name, {"true": True, "false": False}.get(value, value)


def choose_gpus_and_build_serve_function(
    options: InferenceEngineOptions, http: HttpClient, say: Callable[[str], None]
) -> ServeExport:
    """Return the function that serves exports one after the other; `ValueError` where too few GPUs are free."""
    if options.url:
        return lambda export, log_dir: contextlib.nullcontext(MultiServerModelClient([options.url], http))
    gpus = probe_local_gpus() if options.servers != 1 else ()
    environments = build_env_per_server_requiring_free_gpus(
        options.servers, gpus, os.environ.get(VISIBLE_DEVICES), options.settings
    )
    for env in environments:
        if VISIBLE_DEVICES in env:
            text = _("one of {count} servers: GPU {gpus}")
            say(text.format(count=len(environments), gpus=env[VISIBLE_DEVICES]))

    def serve(export: Path, log_dir: Path) -> contextlib.AbstractContextManager[MultiServerModelClient]:
        free_ports = (port for port in range(options.port + 1, 1 << 16) if not describe_port_holder_unless_free(port))
        ports = [options.port, *itertools.islice(free_ports, len(environments) - 1)]
        commands = [
            ServerCommand(
                argv=build_vllm_argv(options.python, export, port, options.settings),
                url=f"http://127.0.0.1:{port}",
                start_timeout_s=options.start_timeout_s,
                env=env,
            )
            for port, env in zip(ports, environments, strict=True)
        ]
        return serve_model(commands, log_dir, http)

    return serve


def build_env_per_server_requiring_free_gpus(
    servers_or_0_for_auto: int, gpus: Sequence[LocalGpu], visible_devices: str | None, settings: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Return the environment of each server, which chooses its GPUs; `ValueError` where too few are free.

    Without any `gpus` engines compute on the processor; 0 `servers` are as many as free GPUs allow, and one at least.
    """
    if not gpus or servers_or_0_for_auto == 1:
        return [{} for __ in range(max(1, servers_or_0_for_auto))]
    plain = {name.replace("-", "_"): value for name, value in settings.items()}
    per_server = math.prod(int(plain.get(name, 1)) for name in _PARALLEL_SETTINGS)
    free = _list_free_gpus(gpus, visible_devices)
    count = servers_or_0_for_auto or min(MAX_SERVERS, len(free) // per_server)
    if not count:  # it says itself what it lacks
        return [{}]
    if count * per_server > len(free):
        held = ", ".join(str(gpu.index) for gpu in gpus if not gpu.is_memory_nearly_unused) or _("none")
        raise ValueError(
            _("{count} servers need {count2} free GPUs, there are {free_count} (held: {held})").format(
                count=count, count2=count * per_server, free_count=len(free), held=held
            )
        )
    shares = [free[start : start + per_server] for start in range(0, count * per_server, per_server)]
    return [{VISIBLE_DEVICES: ",".join(names), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} for names in shares]


def _list_free_gpus(gpus: Sequence[LocalGpu], visible_devices: str | None) -> list[str]:
    free = {str(gpu.index): gpu.is_memory_nearly_unused for gpu in gpus}
    if visible_devices is None:
        return [name for name, is_free in free.items() if is_free]
    names = (name.strip() for name in visible_devices.split(","))
    return [name for name in names if name and free.get(name, "-" in name)]  # a UUID counts as free


@contextlib.contextmanager
def serve_model(commands: Sequence[ServerCommand], log_dir: Path, http: HttpClient) -> Iterator[MultiServerModelClient]:
    """Yield the model behind servers that run as long as the block; logs are server.log, server-2.log and so on.

    Raises
    ------
    ModelServerError
        One ended, or was not ready in time; another listens on its port; or they are not the same engine.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        started = []
        for number, command in enumerate(commands, start=1):
            _wait_for_free_port(command.url)
            log = log_dir / (f"server-{number}.log" if number > 1 else "server.log")
            # it dies with the thread that starts it (PR_SET_PDEATHSIG is of threads): this one waits for the block
            with log.open("ab") as stream:
                argv = Command(argv=command.argv, env=command.env)
                process = start_command(argv, stdout=stream, stderr=STDOUT, die_with_parent=True)
            stack.callback(_stop, process)
            started.append((process, command, log))
        deadline = time.monotonic() + max(command.start_timeout_s for command in commands)
        for process, command, log in started:
            _wait_until_ready(process, command, deadline, log, http)
        yield MultiServerModelClient([command.url for command in commands], http)


def _wait_for_free_port(url: str) -> None:
    """Wait until nobody listens on the server's port: one that was killed a moment ago must not answer for it."""
    port, deadline = urlsplit(url).port or 0, time.monotonic() + _PORT_TIMEOUT_S
    while holder := describe_port_holder_unless_free(port):
        if time.monotonic() >= deadline:
            raise ModelServerError(
                _("port {port} of the inference server is taken: {holder}").format(port=port, holder=holder)
            )
        time.sleep(_POLL_S)


def _wait_until_ready(
    process: ProcessHandle, command: ServerCommand, deadline: float, log: Path, http: HttpClient
) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ModelServerError(
                _("the inference server ended with status {returncode}; read {log}").format(
                    returncode=process.returncode, log=log
                )
            )
        with contextlib.suppress(ModelServerError):
            MultiServerModelClient([command.url], http)
            return
        time.sleep(_POLL_S)
    raise ModelServerError(
        _("the inference server was not ready after {start_s}; read {log}").format(
            start_s=exact_duration_text(command.start_timeout_s), log=log
        )
    )


def _stop(process: ProcessHandle) -> None:
    """Stop the whole process group: what the server started must be gone before the next export needs the GPU."""
    for number, timeout_s in _STOP_TIMEOUTS_S.items():
        deadline = time.monotonic() + timeout_s
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.1)
        except (ProcessLookupError, PermissionError):
            return
