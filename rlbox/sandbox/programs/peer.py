"""One end of the line between checker and program: each can ask the other, from any number of threads.

What has no plain kind stays on its side; the other side has a `Remote` in its place, and asks for attributes, calls and
operators. Run by the stack's interpreter, which has no rlbox.
"""

from __future__ import annotations

import builtins
import itertools
import operator
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import wire  # type: ignore[import-not-found]  # beside it, where it runs

Message = dict[str, Any]
ARITHMETIC = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
REFLECTED = tuple(f"r{name}" for name in ARITHMETIC)
UNARY = ("neg", "pos", "abs", "invert")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BUILTINS: dict[str, Any] = {"len": len, "bool": bool, "hash": hash, "repr": repr, "str": str, "iter": iter}
_METHODS = ("enter", "exit")
_ITEMS = ("getitem", "setitem", "delitem", "contains")
OPERATORS = (*ARITHMETIC, *REFLECTED, *UNARY, *COMPARISONS, *_BUILTINS, *_METHODS, *_ITEMS)
"""Special methods that a `Remote` passes on, without their underscores."""


class Proxy:
    """What stands for a thing or a class of the other side."""

    _peer: Peer
    _number: int

    def __getattr__(self, name: str) -> Any:
        return self._peer.request_remote_operation(self._number, "get", name)

    def __call__(self, *words: Any, **names: Any) -> Any:
        return self._peer.request_remote_operation(self._number, "call", "", words, names)


class Remote(Proxy):
    """A thing of the other side."""

    allow_operators = False

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.request_remote_operation(self._number, "set", name, (value,))


class RemoteClass(Proxy, type):
    """A class of the other side, for `isinstance`, `except` and calls."""


def _make_operator(name: str) -> Callable[..., Any]:
    return lambda self, *words: self._peer.apply_remote_operator(self, name, words)


for _name in OPERATORS:
    setattr(Remote, f"__{_name}__", _make_operator(_name))


class Peer:
    """Asks over `fd` and answers what the other side asks; `gone` says why it cannot any more.

    Each message names its talk: a question, its answer, and what is asked and answered in between. A talk belongs to
    one thread on each side, the main thread's to the main thread's.
    """

    side = ""
    """First letter of the talks that this side begins."""

    def __init__(self, fd: int) -> None:
        self.gone = ""
        self.questions: SimpleQueue[Message | None] = SimpleQueue()
        """Those of the other side's main thread."""
        self._fd, self._count = fd, itertools.count()
        self._sending, self._thread = threading.Lock(), threading.local()
        self._inboxes: dict[str, SimpleQueue[Message | None]] = {}
        self.things: list[Any] = []  # of this side, which the other has a number of
        self._numbers: dict[int, int] = {}  # id of a thing to its number
        self._remotes: dict[int, Any] = {}

    def start_receiver_thread(self) -> None:
        os.register_at_fork(after_in_child=self._close)
        threading.Thread(target=self._receive_all, daemon=True).start()

    def _close(self) -> None:
        """Leave the line to the parent: a forked child that went on would answer in its place."""
        os.close(self._fd)
        self._fd = -1

    def ask(self, question: Message) -> Any:
        """Return what is answered; raises what the other side raised, or WireError where it is gone."""
        if talk := getattr(self._thread, "talk", ""):
            return self._ask(talk, question)
        return self._hold(f"{self.side}{next(self._count)}", lambda talk: self._ask(talk, question))

    def answer(self, message: Message) -> None:
        self._hold(message["talk"], lambda talk: self._send({"talk": talk, **self._answer(message["ask"])}))

    def _hold(self, talk: str, act: Callable[[str], Any]) -> Any:
        self._inboxes[talk], self._thread.talk = SimpleQueue(), talk
        try:
            return act(talk)
        finally:
            del self._inboxes[talk]
            self._thread.talk = ""

    def _ask(self, talk: str, question: Message) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        self._send({"talk": talk, "main": is_main, "ask": question})
        while True:
            message = None if self.gone else self._inboxes[talk].get()
            if message is None:
                raise wire.WireError(self.gone)
            if "ask" not in message:
                break
            self._send({"talk": talk, **self._answer(message["ask"])})
        try:
            if "raised" not in message:
                return self._decode(message.get("value"))
            error = self._build_error(message["raised"])
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as malformed:
            raise wire.WireError(f"no answer: {malformed}") from malformed
        raise error

    def _send(self, message: Message) -> None:
        try:
            with self._sending:
                wire.send_message(self._fd, message)
        except OSError as error:
            raise wire.WireError(str(error)) from error

    def _receive_all(self) -> None:
        try:
            while True:
                message = wire.receive_message(self._fd)
                talk = message.get("talk")
                if talk in self._inboxes:
                    self._inboxes[talk].put(message)
                elif "ask" not in message or not isinstance(talk, str) or talk.startswith(self.side):
                    raise wire.WireError("an answer to no question")
                elif message.get("main"):
                    self.questions.put(message)
                else:
                    threading.Thread(target=self.answer, args=(message,), daemon=True).start()
        except Exception as error:
            self.gone = str(error) or type(error).__name__
            for inbox in (self.questions, *list(self._inboxes.values())):
                inbox.put(None)

    def _answer(self, question: Message) -> Message:
        try:
            return {"value": self._encode(self._carry_out(question))}
        except BaseException as error:
            kind = type(error)
            raised: Message = {"name": kind.__name__, "builtin": _find_builtin(kind), "text": str(error)[:500]}
            if kind.__module__ == "__main__":
                raised["class"] = self._refer(kind)
            return {"raised": raised}

    def _carry_out(self, question: Message) -> Any:
        thing, name = self.things[question["at"]], str(question.get("name"))
        do, words = question["do"], self._decode(question.get("words", []))
        if do == "call":
            return thing(*words, **{key: self._decode(value) for key, value in question["names"].items()})
        if do == "operate" and name in OPERATORS:
            return _apply_operator(thing, name, words)
        if name.startswith("_") and name != "__name__":
            raise AttributeError(name)
        if do == "set":
            setattr(thing, name, *words)
            return None
        return getattr(thing, name)

    def _build_error(self, raised: Any) -> BaseException:
        name, text = str(raised["name"]).replace("\0", ""), str(raised["text"])
        kind = getattr(builtins, name, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = self._find(raised["class"]) if "class" in raised else type(name, (Exception,), {})
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise wire.WireError("no exception")
        error = kind.__new__(kind, text)
        error.args = (text,)
        return error

    def apply_remote_operator(self, remote: Remote, name: str, words: tuple[Any, ...]) -> Any:
        return self.request_remote_operation(remote._number, "operate", name, words)

    def request_remote_operation(
        self, number: int, do: str, name: str, words: tuple[Any, ...] = (), names: dict[str, Any] | None = None
    ) -> Any:
        if do == "get" and name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        encoded = {key: self._encode(value) for key, value in (names or {}).items()}
        words_encoded = [self._encode(word) for word in words]
        return self.ask({"do": do, "at": number, "name": name, "words": words_encoded, "names": encoded})

    def _encode(self, value: Any) -> Any:
        return wire.encode_value(value, self._refer)

    def _decode(self, value: Any) -> Any:
        return wire.decode_value(value, self._find)

    def _refer(self, thing: Any) -> Message:
        """Return a reference to a thing: to one of `yours`, or of `mine` with its class."""
        if isinstance(thing, Proxy):
            return {"k": "yours", "v": thing._number}
        number = self._numbers.setdefault(id(thing), len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        reference: Message = {"k": "mine", "v": number}
        if isinstance(thing, type):
            bases = [self._refer(base) for base in thing.__bases__ if base.__module__ == "__main__"]
            reference |= {"class": thing.__name__, "bases": bases, "builtin": _find_builtin(thing)}
        elif type(thing).__module__ == "__main__":
            reference["of"] = self._refer(type(thing))
        return reference

    def _find(self, reference: Message) -> Any:
        kind, number = reference.get("k"), reference.get("v")
        if type(number) is not int or number < 0 or kind not in ("mine", "yours"):
            raise wire.WireError("no value")
        if kind == "yours":
            return self.things[number]
        if number not in self._remotes:
            self._remotes[number] = self._make_remote(number, reference)
        return self._remotes[number]

    def _make_remote(self, number: int, reference: Message) -> Any:
        if "class" in reference:
            kind = getattr(builtins, str(reference["builtin"]), object)
            root = kind if issubclass(kind, Exception) else Remote
            bases = [self._find_class(base) for base in reference["bases"]] or [root]
            space = {"_peer": self, "_number": number, "__module__": "__main__"}
            return RemoteClass(str(reference["class"]).replace("\0", ""), tuple(bases), space)
        base: Any = self._find_class(reference["of"]) if "of" in reference else Remote
        remote = base.__new__(base)  # an exception or a Remote
        object.__setattr__(remote, "_peer", self)
        object.__setattr__(remote, "_number", number)
        return remote

    def _find_class(self, reference: Message) -> type:
        kind = self._find(reference)
        if not isinstance(kind, RemoteClass):
            raise wire.WireError("no class of the other side")
        return kind


def _find_builtin(kind: type) -> str:
    return next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")


def _apply_operator(thing: Any, name: str, words: list[Any]) -> Any:
    if name in REFLECTED:
        return _apply_operator(words[0], name[1:], [thing])
    if name in _METHODS:
        return getattr(thing, f"__{name}__")(*words)
    function = _BUILTINS.get(name) or getattr(operator, f"{name}_" if name in ("and", "or") else name)
    return function(thing, *words)
