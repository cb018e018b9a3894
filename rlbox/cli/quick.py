"""The command lines that are typed most often, carried out without click, whose import costs as much as all they do.

Only the plainest form of a verb is known here; every other one is left to click and the verb's own file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlbox.app import App

_BUILD_FLAGS = ("--no-cache", "--rebuild")


def run_quickly(words: Sequence[str]) -> int | None:
    """Carry out a command line and return its exit code, or None, with nothing done, when it is not for this file."""
    match words:
        case ["build", name, *flags] if not name.startswith("-") and set(flags) <= set(_BUILD_FLAGS):
            return _build(words, name, flags)
        case ["shell", name, "--", *command] if not name.startswith("-"):
            return _shell(words, name, tuple(command))
        case ["push", name, "--to", place] if not name.startswith("-"):
            return _push(words, name, place)
        case _:
            return None


def _build(words: Sequence[str], name: str, flags: Sequence[str]) -> int | None:
    from rlbox.cli.failure import answer_failures
    from rlbox.image.act.build import build_target
    from rlbox.image.build import BuildWish

    app = _app()
    no_cache, rebuild = (flag in flags for flag in _BUILD_FLAGS)
    wish = BuildWish(no_cache=no_cache, rebuild=rebuild, sources=os.environ.get("RLBOX_SOURCES", ""))
    return answer_failures(words, lambda: build_target(app, name, wish)) if app else None


def _shell(words: Sequence[str], name: str, command: tuple[str, ...]) -> int | None:
    from rlbox.cli.failure import answer_failures
    from rlbox.run.shell import open_shell

    app = _app()
    return answer_failures(words, lambda: open_shell(app, name, command, None)) if app else None


def _push(words: Sequence[str], name: str, place: str) -> int | None:
    from rlbox.cli.failure import answer_failures
    from rlbox.registry.act.push_target import push_target

    app = _app()
    return answer_failures(words, lambda: push_target(app, name, place, plain_http=False)) if app else None


def _app() -> App | None:
    """Return the object that a verb without shared options gets; None when its project folder is missing."""
    from rlbox.app import App, project_of

    try:
        app = App(project=project_of(None))
    except OSError:  # the working directory is gone
        return None
    return app if app.project.folder.is_dir() else None


def offer_verbs(environ: Mapping[str, str]) -> str | None:
    """Return what bash is to offer for a verb, in click's protocol; None when something else is to be completed.

    Source: click's `BashComplete`: a line `plain,VALUE` for each offer; COMP_CWORD is the number of the word.
    """
    words = environ.get("COMP_WORDS", "")
    if environ.get("_RLBOX_COMPLETE") != "bash_complete" or environ.get("COMP_CWORD") != "1" or not words.isprintable():
        return None
    begun = "".join(words.split()[1:2])
    if begun and not begun.isalpha():
        return None
    from rlbox.cli.verbs import VERBS

    return "".join(f"plain,{verb}\n" for verb in sorted(VERBS) if verb.startswith(begun))
