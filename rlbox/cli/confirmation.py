"""Ask a person before what cannot be taken back, costs money, or changes more than rlbox's own."""

from __future__ import annotations

import sys

import click

from rlbox.app import App
from rlbox.i18n import _
from rlbox.terminal import remove_controls


def require_confirmation(app: App, yes: bool, question: str) -> None:
    """Ask a person whether to go on; without a terminal only `--yes` will do."""
    if yes:
        return
    if app.as_json or not sys.stdin.isatty():
        raise click.UsageError(_("there is no terminal to ask on: pass --yes to {what}").format(what=question))
    told = remove_controls(question)
    click.confirm(f"{told[0].upper()}{told[1:]}?", abort=True, err=True)
