"""Hand a run's secrets to its supervisor: one JSON line over standard input, never argv, a file or `docker inspect`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping

from rlbox.errors import Interrupted, SpecError, TimedOut
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.secrets.mask_stream import MASK
from rlbox.secrets.masks import SECRETS_VARIABLE
from rlbox.values import Secret

RECEIVE_TIMEOUT_S = 60.0
"""How long a supervisor waits for its secrets."""

_MOST_BYTES = 1 << 20
_CHUNK = 1 << 16
_LOOK_S = 0.2


def encode_secrets_as_json_line(secrets: Mapping[str, Secret]) -> bytes:
    return json.dumps({name: secret.reveal() for name, secret in secrets.items()}).encode("ascii") + b"\n"


def try_send_secrets(write: Callable[[bytes], object], secrets: Mapping[str, Secret]) -> None:
    """Send `secrets` by `write`, which takes bytes and sends all of them: `file.write`, `socket.sendall`.

    Nothing is sent for a run without secrets, whose supervisor does not listen. A supervisor that has died already
    takes nothing: that is no error here, its end tells why.
    """
    if secrets:
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            write(encode_secrets_as_json_line(secrets))


def unset_and_declare_secrets(environment: MutableMapping[str, str], secret_names: Collection[str]) -> None:
    """Take secrets out of the environment that processes inherit, wherever they came from, and name them there."""
    for name in secret_names:
        environment.pop(name, None)
    named = filter(None, environment.get(SECRETS_VARIABLE, "").split(","))
    if secret_names:
        environment[SECRETS_VARIABLE] = ",".join(dict.fromkeys((*named, *secret_names)))


def receive_secrets(
    names: tuple[str, ...], fd: int = 0, timeout_s: float = RECEIVE_TIMEOUT_S, is_stopped: Callable[[], bool] = bool
) -> dict[str, str]:
    """Return the secrets that come as one line on the file `fd`; nothing is read when `names` is empty.

    `names`: What the run's plan says must come (`RunPlan.secrets`).
    `is_stopped`: Whether the user has stopped the run meanwhile.

    Raises Interrupted: the run was stopped before the line came.
    Raises TimedOut: the line did not come whole within `timeout_s`.
    Raises SpecError: it is not what `try_send_secrets` sends, or a name is missing in it; the message holds no value.
    """
    if not names:
        return {}
    line = _read_line(fd, time.monotonic() + timeout_s, is_stopped)
    if line is None and is_stopped():
        raise Interrupted(_("the run was stopped before its secrets came"))
    if line is None:
        raise TimedOut(
            _("the run's secrets ({names}) did not come over standard input").format(names=", ".join(names)),
            next_step=_("start the run with `rlbox run`, or `rlbox run --resume RUN`: they send them"),
        )
    return _parse(line, names)


def _read_line(fd: int, until: float, is_stopped: Callable[[], bool]) -> bytes | None:
    """Return the bytes before the first line end; None when the file ends or fails, is too slow or too long for it."""
    data = b""
    while b"\n" not in data:
        if is_stopped() or time.monotonic() > until or len(data) > _MOST_BYTES:
            return None
        try:
            if not select.select([fd], [], [], _LOOK_S)[0]:
                continue
            chunk = os.read(fd, _CHUNK)
        except (OSError, ValueError):
            return None
        if not chunk:
            return None
        data += chunk
    return data.partition(b"\n")[0]


def _parse(line: bytes, names: tuple[str, ...]) -> dict[str, str]:
    try:
        data = parse_untrusted_json(line)
    except ValueError:  # its text would quote the line
        data = None
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise SpecError(
            _("the standard input does not hold secrets: expected one line of JSON, names to texts")
        ) from None
    if missing := [name for name in names if name not in data]:
        raise SpecError(
            _("secrets that did not come over standard input: {missing}").format(missing=", ".join(missing))
        )
    return data


class SecretGrants:
    """The secrets of a run, name to value, and what a part of it that names some of them finds in its environment.

    `aliases` are groups of names that mean the same secret: who names one of them gets all.
    """

    def __init__(self, secrets: Mapping[str, str], aliases: Iterable[tuple[str, ...]] = ()) -> None:
        self._secrets = dict(secrets)
        self._aliases = tuple(aliases)

    def make_environment(self, names: Iterable[str]) -> dict[str, str]:
        """Return the variables for a part that names these secrets; an optional one that is not there is left out.

        In a run with secrets, `RLBOX_SECRETS` names those of the part, be it none.
        """
        asked = set(names)
        asked |= {name for group in self._aliases if asked & set(group) for name in group}
        given = {name: value for name, value in self._secrets.items() if name in asked}
        return {**given, SECRETS_VARIABLE: ",".join(given)} if self._secrets else {}

    def make_masked_environment(self, names: Iterable[str]) -> dict[str, str]:
        return {name: text if name == SECRETS_VARIABLE else MASK for name, text in self.make_environment(names).items()}
