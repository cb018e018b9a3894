"""Messages of sources and of compiled libraries."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest

from rlbox.inventory.messages import HOLE, MOST, settled, source_messages
from rlbox.inventory.native import library_messages


def told(source: str) -> list[tuple[str, str, str, str]]:
    found = settled(source_messages(dedent(source), "pkg/core.py"))
    return [(one.kind, one.name, one.template.replace(HOLE, "_"), one.where) for one in found]


@pytest.mark.parametrize(
    ("made", "template"),
    [
        ('ValueError(f"needs {n} GPUs, has {have:.1f}")', "needs _ GPUs, has _"),
        ('ValueError("needs %d GPUs, has %.1f (100%%)" % (n, have))', "needs _ GPUs, has _ (100%)"),
        ('ValueError("needs {} GPUs of {{all}}, has {x!r}".format(n, x=1))', "needs _ GPUs of {all}, has _"),
        ('ValueError("needs " + str(n) + " GPUs of this node")', "needs _ GPUs of this node"),
        ('ValueError("needs many "\n                 "GPUs of this node")', "needs many GPUs of this node"),
        ('ValueError("\\n\\n  needs many GPUs\\nsecond line")', "needs many GPUs"),
        ('ValueError(1, message="needs many GPUs of this node")', "needs many GPUs of this node"),
    ],
)
def test_the_text_of_an_exception_has_holes_for_values(made: str, template: str) -> None:
    assert told(f"def check(n):\n    raise {made}\n") == [("raise", "ValueError", template, "pkg/core.py: check")]


def test_a_name_stands_for_the_text_that_it_was_given() -> None:
    source = """
    class Engine:
        def start(self, n):
            head = "the engine cannot start:"
            message = f"{head} {n} workers are too few"
            if n:
                raise RuntimeError(message)
    """
    assert told(source) == [
        ("raise", "RuntimeError", "the engine cannot start: _ workers are too few", "pkg/core.py: Engine.start")
    ]


def test_each_branch_of_a_text_is_kept() -> None:
    source = """
    def check(n):
        text = ""
        if n > 8:
            text = f"too many GPUs: {n}"
        elif n < 1:
            text = "too few GPUs for this job"
        if text:
            raise ConfigError(text)
        raise ConfigError("the first text of all" if n else "the second text of all")
    """
    assert sorted(row[2] for row in told(source)) == [
        "the first text of all", "the second text of all", "too few GPUs for this job", "too many GPUs: _",
    ]  # fmt: skip


def test_an_exception_is_known_by_its_name_where_its_first_line_has_no_words() -> None:
    source = """
    from pkg.errors import ConnectionError

    def ask(error):
        raise RemoteError(f"Got: {error}\\nThe hub was asked in vain")

    def send(error):
        raise ConnectionError(error)

    def build(name):
        run(name, error_prefix=f"Error building extension '{name}'")
    """
    assert [row[1:3] for row in told(source)] == [
        ("RemoteError", "The hub was asked in vain"),
        ("RemoteError", "RemoteError:"),
        ("ConnectionError", "ConnectionError:"),
        ("", "Error building extension '_'"),
    ]


def test_logs_assertions_and_ends_are_kept_and_warnings_are_not() -> None:
    source = """
    def work(parser, self):
        logger.error("worker %s is gone", name)
        self._log.exception("cannot read the checkpoint")
        logger.warning("this is of no account at all")
        warnings.warn("this is of no account at all")
        assert size > 0, f"batch of {size} rows"
        parser.error("give --model or --path")
        sys.exit("nothing to train on")
        future.set_exception(TimeoutError("the collective took too long"))
    """
    assert [row[:3] for row in told(source)] == [
        ("log", "error", "worker _ is gone"),
        ("log", "exception", "cannot read the checkpoint"),
        ("assert", "AssertionError", "batch of _ rows"),
        ("exit", "error", "give --model or --path"),
        ("exit", "exit", "nothing to train on"),
        ("raise", "TimeoutError", "the collective took too long"),
    ]


def test_a_class_that_writes_its_own_text_is_known_where_it_is_raised() -> None:
    source = """
    class ShardError(Exception):
        def __init__(self, shard):
            super().__init__(f"shard {shard} of the checkpoint is damaged")

    class LaunchError(Exception):
        pass

    def load(shard):
        raise ShardError(shard)

    def launch(names):
        raise LaunchError(names)

    def other():
        raise ValueError(names)
    """
    assert told(source)[1:] == [
        ("raise", "ShardError", "shard _ of the checkpoint is damaged", "pkg/core.py: load"),
        ("raise", "LaunchError", "LaunchError:", "pkg/core.py: launch"),
    ]


def test_long_messages_keep_their_beginning_and_short_ones_are_left_out() -> None:
    long = "the model does not fit " * 20
    assert (
        told(f"def f():\n    raise ValueError({long!r})\n    raise ValueError('bad')\n")[0][2]
        == long[:MOST].rpartition(" ")[0]
    )
    assert told("def f(: raise") == []


def test_a_library_gives_what_reads_like_a_message() -> None:
    data = b"\0".join(
        (
            b"\x7fELF",
            b"Timed out after {} seconds waiting for clients. {}/{} clients joined.",
            b"NET/IB : Got async event : %s (%d) on the port",
            b"_ZN4c10d8TCPStoreC2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcE",
            b"short",
            b"std::vector<int> takes an allocator as its argument",
            b"Returns the shape of the tensor that was given",
            b"",
        )
    )
    found = [one.template.replace(HOLE, "_") for one in library_messages(data, "lib.so", re.compile("clients|async"))]
    assert found == [
        "Timed out after _ seconds waiting for clients. _/_ clients joined.",
        "NET/IB : Got async event : _ (_) on the port",
    ]
