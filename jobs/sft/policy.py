"""The client of the inference server: OpenAI's chat API, with the parameters of `eval_config` and no others."""

from __future__ import annotations

from dataclasses import dataclass

from sft import eval_config
from sft.web import AskError, Server

CHAT = "/v1/chat/completions"


class PolicyError(Exception):
    """The server refused or could not be reached: nothing is known about the model's answer."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model wrote, with its tokens; `finish` is stop, or length when it was cut."""

    text: str
    finish: str
    tokens: int


class Policy:
    """The model `name` behind the server at `url`."""

    def __init__(self, url: str, name: str, *, wait_s: float = 600.0) -> None:
        self.name = name
        self.server = Server(url, wait_s=wait_s)

    def answer(self, ask: str) -> Answer:
        """Return the answer to one message."""
        asked = {
            "model": self.name,
            "messages": [{"role": "user", "content": ask}],
            "temperature": eval_config.TEMPERATURE,
            "top_p": eval_config.TOP_P,
            "max_tokens": eval_config.MAX_NEW_TOKENS,
        }
        try:
            status, text = self.server.ask(CHAT, asked)
            if status == 400 and "maximum context length" in text:
                return Answer(text="", finish="too-long", tokens=0)
            body = self.server.read(CHAT, (status, text))
            choice = body["choices"][0]
            tokens = int((body.get("usage") or {}).get("completion_tokens") or 0)
            return Answer(text=choice["message"]["content"] or "", finish=choice["finish_reason"], tokens=tokens)
        except AskError as error:
            raise PolicyError(str(error)) from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise PolicyError(f"{self.server.url}{CHAT}: {type(error).__name__}: {error}") from error
