"""Ask the inference server: OpenAI's API, with prompts as token ids where the server tells them (vLLM's /tokenize)."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlbox.amounts import size_text
from rlbox.evaluation.suites import Decoding
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.http import HttpClient, NoResponseError

_MOST_ANSWER = 64 << 20


class ModelServerError(Exception):
    """The server refused, could not be reached or answered as another model: nothing is known of the model's answer."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a problem asks as the server takes it: token ids, or the text of the message where it tells none."""

    text: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """What the model wrote; `finish` is stop, length when it was cut, or too-long when the prompt leaves no room."""

    text: str
    finish: str
    tokens: int


class Model(Protocol):
    """A model that answers, behind `servers` servers at once; see `ModelClient`."""

    url: str
    root: str
    facts: dict[str, Any]
    servers: int

    def prompt(self, ask: str) -> Prompt:
        """Return a message as the model gets it."""

    def answer(self, prompt: Prompt, decoding: Decoding, number: int) -> ModelAnswer:
        """Return answer `number` to a prompt."""


class ModelClient:
    """The one model behind the server at `url`; any number of threads may ask.

    `root` is the export whose weights it has, where the server says so.
    """

    servers = 1

    def __init__(self, url: str, http: HttpClient) -> None:
        self.url, self._http = url.rstrip("/"), http
        self.name, self.root, self.facts = self._served()
        self._tokenizes = True
        self._prompts: dict[str, Prompt] = {}

    def prompt(self, ask: str) -> Prompt:
        if (known := self._prompts.get(ask)) is None:
            known = self._prompts[ask] = self._made(ask)
        return known

    def _made(self, ask: str) -> Prompt:
        if self._tokenizes:
            asked = {"model": self.name, "messages": [{"role": "user", "content": ask}], "add_generation_prompt": True}
            status, found = self._post("/tokenize", asked)
            if status == 200 and isinstance(found, dict) and isinstance(found.get("tokens"), list):
                return Prompt(text=ask, tokens=tuple(int(token) for token in found["tokens"]))
            if status not in (404, 405):
                raise ModelServerError(
                    _("{url}/tokenize: status {status}: {found}").format(
                        url=self.url, status=status, found=str(found)[:200]
                    )
                )
            self._tokenizes = False
        return Prompt(text=ask)

    def answer(self, prompt: Prompt, decoding: Decoding, number: int) -> ModelAnswer:
        """Return answer `number` to a prompt; the seed of a sampled one is that of its number."""
        drawn = {
            "model": self.name,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "max_tokens": decoding.max_tokens,
            "stop": list(decoding.stop),
        }
        if decoding.temperature > 0:
            drawn["seed"] = decoding.seed + number
        if prompt.tokens:
            status, found = self._post("/v1/completions", drawn | {"prompt": list(prompt.tokens)})
        else:
            status, found = self._post(
                "/v1/chat/completions", drawn | {"messages": [{"role": "user", "content": prompt.text}]}
            )
        if status == 400 and "maximum context length" in str(found):
            return ModelAnswer(text="", finish="too-long", tokens=0)
        return self._read(status, found)

    def _read(self, status: int, found: Any) -> ModelAnswer:
        if status != 200:
            raise ModelServerError(
                _("{url}: status {status}: {found}").format(url=self.url, status=status, found=str(found)[:200])
            )
        try:
            said = str(found.get("model", self.name))
            choice = found["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            tokens = int((found.get("usage") or {}).get("completion_tokens") or 0)
            finish = str(choice["finish_reason"])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ModelServerError(
                _("{url}: no answer of OpenAI's API: {name}: {error}").format(
                    url=self.url, name=type(error).__name__, error=error
                )
            ) from error
        if said != self.name:
            raise ModelServerError(
                _("{url}: {said!r} answered, {name!r} was asked (P195)").format(url=self.url, said=said, name=self.name)
            )
        return ModelAnswer(text=text or "", finish=finish, tokens=tokens)

    def _served(self) -> tuple[str, str, dict[str, Any]]:
        """Return the id of the one model, the folder it was loaded from, and what the server says of itself."""
        status, found = self._get("/v1/models")
        try:
            rows = found["data"]
            names = [str(row["id"]) for row in rows]
        except (KeyError, TypeError) as error:
            raise ModelServerError(
                _("{url}/v1/models: status {status}: {found}").format(
                    url=self.url, status=status, found=str(found)[:200]
                )
            ) from error
        if len(names) != 1:
            raise ModelServerError(
                _("{url} serves {count} models ({names}): which would answer?").format(
                    url=self.url, count=len(names), names=", ".join(names)
                )
            )
        __, version = self._get("/version")
        facts = {"version": version.get("version", "")} if isinstance(version, dict) else {"version": ""}
        return names[0], str(rows[0].get("root") or ""), facts | {"max_model_len": rows[0].get("max_model_len")}

    def _get(self, path: str) -> tuple[int, Any]:
        return self._exchange("GET", path, b"")

    def _post(self, path: str, content: dict[str, Any]) -> tuple[int, Any]:
        return self._exchange("POST", path, json.dumps(content).encode())

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        try:
            status, text = self._asked(method, path, body)
        except (NoResponseError, OSError) as error:
            raise ModelServerError(_("{url}{path}: {error}").format(url=self.url, path=path, error=error)) from error
        try:
            return status, parse_json(text)
        except ValueError:
            return status, text[:2000].decode("utf-8", "replace")

    def _asked(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Ask, once more where the connection was cut: a server closes one that was idle as it is used again."""
        try:
            return self._once(method, path, body)
        except NoResponseError as error:
            if error.kind != "cut":
                raise
        return self._once(method, path, body)

    def _once(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if body else {}
        with self._http.stream(method, self.url + path, headers=headers, body=body) as answer:
            return answer.status, b"".join(_bounded(answer.iter_bytes()))


def _bounded(blocks: Any) -> Sequence[bytes]:
    found, size = [], 0
    for block in blocks:
        found.append(block)
        size += len(block)
        if size > _MOST_ANSWER:
            raise ModelServerError(
                _("an answer of more than {most_answer}").format(most_answer=size_text(_MOST_ANSWER))
            )
    return found


class ModelClientPool:
    """The model behind several servers, as `ModelClient` is that behind one; `servers` is how many there are.

    Raises `ModelServerError` where they are not the same engine.
    """

    def __init__(self, members: Sequence[ModelClient]) -> None:
        first = members[0]
        self.url, self.root, self.facts = first.url, first.root, first.facts
        for one in members[1:]:
            if one.facts != first.facts:
                raise ModelServerError(
                    _("{url} is another engine than {first_url}").format(url=one.url, first_url=first.url)
                )
        self.servers = len(members)
        self._members, self._busy, self._lock = members, [0] * len(members), threading.Lock()

    def prompt(self, ask: str) -> Prompt:
        return self._members[0].prompt(ask)

    def answer(self, prompt: Prompt, decoding: Decoding, number: int) -> ModelAnswer:
        """As `Policy.answer`, by whoever has least to do."""
        with self._lock:
            at = min(range(self.servers), key=self._busy.__getitem__)
            self._busy[at] += 1
        try:
            return self._members[at].answer(prompt, decoding, number)
        finally:
            with self._lock:
                self._busy[at] -= 1
