"""Ask inference servers over OpenAI's API, with prompts as token ids where they tell them (vLLM's /tokenize)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlbox.evaluation.suites import Decoding
from rlbox.i18n import _
from rlbox.system.http import HttpClient, NoResponseError


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


class ServedModel(NamedTuple):
    """What a server says of its one model: `path` is where it was loaded from, `engine` what the lock holds."""

    name: str
    path: str
    engine: Mapping[str, Any]


class ModelClient:
    """One model behind one or more equal servers; any number of threads may use it.

    Raises `ModelServerError` where the servers are not the same engine.
    """

    def __init__(self, urls: Sequence[str], http: HttpClient) -> None:
        self.urls = [url.rstrip("/") for url in urls]
        self._http = http
        self.model = self._describe(self.urls[0])
        for url in self.urls[1:]:
            if self._describe(url).engine != self.model.engine:
                raise ModelServerError(
                    _("{url} is another engine than {first_url}").format(url=url, first_url=self.urls[0])
                )
        self._tokenizes = True
        self._pending, self._lock = dict.fromkeys(self.urls, 0), threading.Lock()

    def fetch_prompt(self, message: str) -> Prompt:
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

    def _describe(self, url: str) -> ServedModel:
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
        return ServedModel(names[0], str(models[0].get("root") or ""), engine)

    def _post(self, url: str, path: str, content: dict[str, Any]) -> tuple[int, Any]:
        return self._exchange("POST", url + path, json.dumps({"model": self.model.name, **content}).encode())

    def _exchange(self, method: str, url: str, body: bytes = b"") -> tuple[int, Any]:
        """Return status and JSON, or text; a connection that was cut is tried once more: servers close idle ones."""
        headers = {"Content-Type": "application/json"} if body else {}
        for is_retry in (False, True):
            try:
                response = self._http.request(method, url, headers=headers, body=body)
                break
            except (NoResponseError, OSError) as error:
                if is_retry or not isinstance(error, NoResponseError) or error.kind != "cut":
                    raise ModelServerError(_("{url}: {error}").format(url=url, error=error)) from error
        try:
            return response.status, response.read_json()
        except ValueError:
            return response.status, response.read_body()[:2000].decode("utf-8", "replace")


def _unexpected(url: str, status: int, reply: Any) -> ModelServerError:
    return ModelServerError(_("{url}: status {status}: {found}").format(url=url, status=status, found=str(reply)[:200]))
