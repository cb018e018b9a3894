"""Ctrl-C at any moment of a command line: exit code 130, and never a death by the signal."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fakes import CHECKOUT

pytestmark = pytest.mark.allow("processes")

# The console script, with a Ctrl-C at the n-th call or return of a function from the first line of rlbox on: a child
# for each moment. It prints a line for each: where it was, how the child ended, and what it said.
MOMENTS = """
import json, os, signal, sys, tempfile

def strike(moment):
    seen = 0
    def look(frame, event, arg):
        nonlocal seen
        seen += 1
        if seen == moment:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)
    sys.setprofile(look)

def started(words, moment):
    out = tempfile.TemporaryFile()
    pid = os.fork()
    if pid == 0:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        sys.argv = ["rlbox", *words]
        from rlbox.cli import main
        strike(moment)
        sys.exit(main())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    out.seek(0)
    return code, out.read().decode()

words, moments = json.loads(sys.argv[1])
for moment in moments:
    code, said = started(words, moment)
    print(json.dumps([moment, code, said]))
"""


@pytest.mark.slow
def test_ctrl_c_at_many_moments_of_a_command_line() -> None:
    """Imports, click, the verb, its imports, and what comes after it; only who comes too late gets the whole answer."""
    moments = [*range(10, 400, 30), *range(400, 240_000, 7_487)]
    argv = [sys.executable, "-c", MOMENTS, json.dumps([["targets"], moments])]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert [moment for moment, _, _ in ends] == moments
    late = [end for end in ends if end[1] == 0 and "xdan" in end[2]]
    assert [end for end in ends if end not in late and end[1] != 130] == []
    assert [end for end in ends if "Traceback" in end[2]] == []
    assert len(late) < len(ends) / 2


def test_an_interrupt_that_python_wrapped_or_dropped() -> None:
    """Where a class is made it becomes the cause of another error, in a callback it is dropped: it comes again."""
    script = """
import signal, sys, time, weakref
import click
from rlbox.cli import main
from rlbox.cli.options import shared
from rlbox.cli.root import root

def interrupted(*_):
    signal.raise_signal(signal.SIGINT)

class Wraps:
    __set_name__ = interrupted

class Drops:
    pass

@click.command()
@shared
def wraps(app):
    type("Made", (), {"field": Wraps()})

@click.command()
@shared
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
