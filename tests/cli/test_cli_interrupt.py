"""Ctrl-C at any moment of a command line: exit code 130, and never a death by the signal."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fakes import CHECKOUT

pytestmark = pytest.mark.allow("processes")


def test_an_interrupt_that_python_wrapped_or_dropped() -> None:
    """Where a class is made it becomes the cause of another error, in a callback it is dropped: it comes again."""
    script = """
import signal, sys, time, weakref
import click
from rlbox.cli import main
from rlbox.cli.options import shared_options
from rlbox.cli.root import root

def interrupted(*_):
    signal.raise_signal(signal.SIGINT)

class Wraps:
    __set_name__ = interrupted

class Drops:
    pass

@click.command()
@shared_options
def wraps(app):
    type("Made", (), {"field": Wraps()})

@click.command()
@shared_options
def drops(app):
    there = Drops()
    back = weakref.ref(there, interrupted)
    del there
    time.sleep(60)

root.get_command = lambda ctx, name: {"wraps": wraps, "drops": drops}[name]
root.resolve_command = lambda ctx, args: (args[0], root.get_command(ctx, args[0]), args[1:])
sys.exit(main())
"""
    for word in ("wraps", "drops"):
        argv = [sys.executable, "-c", script, word]
        done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=30)
        assert (done.returncode, done.stderr.strip()) == (130, "rlbox: interrupted"), word
