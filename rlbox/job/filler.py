"""Fill the placeholders of a job file: `{run}`, `{param.NAME}`, `{port.NAME}` and the like."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.job import Job
from rlbox.job.param import format_argument
from rlbox.job.params import SET, ParamValues
from rlbox.values import OWN

_PYTHONPATH = "PYTHONPATH"
_PLACEHOLDER = re.compile(r"\{([a-z]+)(?:\.([a-z0-9_-]+))?\}")


@dataclass(frozen=True, kw_only=True)
class RunPaths:
    """Where things are, as the stage's processes see them: in the container, or on the host for `here`.

    `python` is the stack's interpreter, `rlbox` the one that has rlbox, `source` the user's tree of the job's
    framework, empty for the installed one.
    """

    run: str
    job: str
    data: str
    python: str
    rlbox: str = f"{OWN}/bin/python"
    source: str = ""


class PlaceholderFiller:
    """Replaces the placeholders of one job by their values.

    A parameter's text from the job file may itself name `{run}`, `{job}`, `{data}`, `{python}`, `{rlbox}` and
    `{attempt}`; what came by `--set` stands for itself.
    """

    def __init__(self, job: Job, values: ParamValues, paths: RunPaths, attempt: int = 1) -> None:
        self._job = job.name
        self.attempt = attempt
        self._known = {name: str(value) for name, value in dataclasses.asdict(paths).items()}
        self._known["attempt"] = str(attempt)
        self._source = self._known.pop("source")
        if job.source:
            self._known["source"] = self._source or job.source.installed
        own = {name: format_argument(job.params[name], value) for name, value in values.params.items()}
        self._optional = {f"{{param.{name}}}" for name, value in values.params.items() if isinstance(value, bool)}
        typed = {name for name, origin in values.origins.items() if origin == SET}
        self._known |= {f"param.{name}": text if name in typed else self._paths(text) for name, text in own.items()}
        self._known |= {f"port.{name}": str(value) for name, value in job.ports.items()}

    def _paths(self, text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: self._known.get(match.group(0)[1:-1], match.group(0)), text)

    def fill_pattern(self, path_for_errors: str, text: str) -> str:
        """Return the regular expression `text` filled in; a value stands for itself, whatever characters it has."""
        return self.fill_text(path_for_errors, text, quote=re.escape)

    def fill_text(self, path_for_errors: str, text: str, quote: Callable[[str], str] = str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match.group(0)[1:-1]
            if name not in self._known:
                raise SpecError(
                    _("jobs/{job}.toml: {where}: {{{name}}} names nothing").format(
                        job=self._job, where=path_for_errors, name=name
                    ),
                    next_step=_("known: {known}").format(
                        known=" ".join(f"{{{known}}}" for known in sorted(self._known))
                    ),
                )
            return quote(self._known[name])

        return _PLACEHOLDER.sub(value, text)

    def fill_argv_dropping_empty(self, path_for_errors: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return each of `words` filled in; one that is nothing but a true-or-false parameter may be left out so."""
        filled = ((word, self.fill_text(path_for_errors, word)) for word in words)
        return tuple(text for word, text in filled if text or word not in self._optional)

    def fill_env(self, path_for_errors: str, table: Mapping[str, str], *, adds_source: bool = False) -> dict[str, str]:
        """Return variables filled in; `[source]` comes first in a PYTHONPATH, one made for it with `adds_source`."""
        env = {key: self.fill_text(f"{path_for_errors}.{key}", value) for key, value in table.items()}
        folders = [folder for folder in env.get(_PYTHONPATH, "").split(":") if folder]
        if self._source and self._source not in folders and (adds_source or _PYTHONPATH in env):
            env[_PYTHONPATH] = ":".join([self._source, *folders])
        return env


def source_mount_path(folder: str) -> str:
    """Return where a container sees the tree `folder` of its host; empty for none.

    Each tree has a path of its own: Python takes a compiled file for that of any source with its path, time and size.
    """
    return f"/opt/source/{hashlib.sha256(folder.encode()).hexdigest()[:8]}" if folder else ""
