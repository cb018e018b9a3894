"""What every test folder shares: no process, no socket, no engine where none belongs; folders of the test's own."""

from __future__ import annotations

import functools
import gc
import lzma
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fakes import EngineSocket, Folder, Rlbox
from following import Follow
from hypothesis import settings
from projectbox import PROJECT

from rlbox.cli import main
from rlbox.diagnose import signatures
from rlbox.i18n import read_translations_and_set_language
from rlbox.provision.apply import (
    ApplyResult,
    apply_plan_steps_skipping_unavailable_apt,
    uninstall_and_describe_leftovers,
)
from rlbox.provision.layout import Layout
from rlbox.provision.plan import ApplyPlan

# a command reads the fix catalogue once, a worker's tests run hundreds of commands
signatures.parse_untrusted_toml = functools.lru_cache(maxsize=1024)(signatures.parse_untrusted_toml)

HERE = Path(__file__).resolve().parent
ISOLATED = ("unit", "golden", "cli")
FOREIGN = ("RLBOX_", "PIP_", "UV_", "DOCKER_", "BUILDX_", "BUILDKIT_", "XDG_", "_RLBOX_")
FOREIGN_NAMES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")

APART = tuple(f"tests/engine/test_{name}.py" for name in ("vast_there_and_back", "smoke"))
"""What has images and containers of its own, and takes none from others: it goes on beside what has the engine."""
QUICK = ("tests/fuzz", "tests/golden", "tests/cli", "tests/unit")

NAMED_SKIPS = (
    "RLBOX_CORPUS names no corpus",  # a folder of real logs, which is no part of the repository
    "this machine lets nobody make a control group",  # none is mounted, or it is read-only, as in a rented container
    "this machine has no C++ compiler",  # Ubuntu and Debian have none before somebody installs it
    "this machine does not allow namespaces for a build",  # a container without the privilege for them
    "this machine has no FUSE",  # a container without the device
    "this machine has no loop device",  # the same
    "this distribution has no chromium-headless-shell",  # Ubuntu's chromium is no package that can be unpacked
    "this distribution has no cosign",  # Debian has it since 13
    "Python before 3.11 does not tell the kernel when a sleep ends",  # Ubuntu 22.04 has 3.10
    "pokerkit needs Python 3.11",  # of Ubuntu 22.04's 3.10 only the tool is asked; its jobs run in an image
)
"""Why a test may be skipped on a fresh machine."""

settings.register_profile("rlbox", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("rlbox")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden` and `--named-skips`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/expected; review the diff")
    parser.addoption(
        "--named-skips", action="store_true", help="fail where a test is skipped for a reason without a name"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers of these folders, and let Ctrl-C be heard."""
    config.addinivalue_line("markers", "allow(*what): lets a test use `processes` or `sockets`")
    config.addinivalue_line("markers", "whole: runs a tool over the whole repository")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a shell starts what goes on in its background with Ctrl-C ignored, and a child of a test would inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "elsewhere: needs what no fresh machine has: a second engine")


def pytest_collection_finish() -> None:
    """Let the collector pass over ten thousand tests and what they imported: they stay, and it would look each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # tests that hold the trees of all modules


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep on one of several workers what shares an engine, and what shares a file: its fixtures are made once."""
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            uses_engine = path.startswith("tests/engine/") and path not in APART
            return "engine" if uses_engine or path == "tests/bench/test_engine_rows.py" else path

    return Rooms(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs an engine; sort what is apart before what is quick."""
    for item in (item for item in items if item.nodeid.startswith("tests/engine/")):
        item.add_marker(pytest.mark.engine)
    items.sort(key=lambda item: item.nodeid.startswith(APART) + 2 * item.nodeid.startswith(QUICK))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `--named-skips`, end red where a test was skipped for a reason that is not in `NAMED_SKIPS`."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--named-skips"):
        return
    skipped = [report for report in reporter.stats.get("skipped", ()) if isinstance(report.longrepr, tuple)]
    other = [report for report in skipped if not report.longrepr[2].endswith(NAMED_SKIPS)]
    for report in other:
        reporter.write_line(f"skipped, and not named: {report.nodeid}: {report.longrepr[2]}", red=True)
    if other and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError(f"this test uses {what}: mark it with pytest.mark.allow, or give it a fake")

    return refuse


def _execute_below_prefix(plan: ApplyPlan, *args: Any, **kwargs: Any) -> ApplyResult:
    assert plan.desired.layout.prefix, "this test applies a target to the machine's own paths: pass --prefix"
    return apply_plan_steps_skipping_unavailable_apt(plan, *args, **kwargs)


def _uninstall_below_prefix(layout: Layout, *args: Any) -> tuple[str, ...]:
    assert layout.prefix, "this test removes a target from the machine's own paths: pass --prefix"
    return uninstall_and_describe_leftovers(layout, *args)


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any) -> None:
    """Keep unit, golden and CLI tests from the machine: its own paths, home, settings, processes, sockets, engine."""
    if request.path.relative_to(HERE).parts[0] not in ISOLATED:
        return
    allowed = {word for mark in request.node.iter_markers("allow") for word in mark.args}
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in FOREIGN_NAMES or name.upper() in PROXIES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("RLBOX_PROJECT_NAME", "tests")
    read_translations_and_set_language("en")  # the command line of another test may have chosen another one
    monkeypatch.setattr("rlbox.system.network_settings.SYSTEM_FILE", home / "no-pip.conf")
    monkeypatch.setattr("rlbox.provision.provision.apply_plan_steps_skipping_unavailable_apt", _execute_below_prefix)
    monkeypatch.setattr("rlbox.provision.provision.uninstall_and_describe_leftovers", _uninstall_below_prefix)
    if "processes" not in allowed:
        monkeypatch.setattr(subprocess.Popen, "__init__", _refuse("a process"))
        for name in ("system", "fork", "posix_spawn", "posix_spawnp", "execv", "execve"):
            monkeypatch.setattr(os, name, _refuse("a process"))
    if "sockets" not in allowed:
        monkeypatch.setattr(socket.socket, "__init__", _refuse("a socket"))
        for name in ("docker", "rlbox.engine.docker"):  # whatever an earlier test of this process connected to
            monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what tests start out of what this host knows of the user's runs, and their images out of those of others."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["RLBOX_PROJECT_NAME"] = PROJECT


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty project folder."""
    return Folder(tmp_path / "project")


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineSocket]:
    """An engine that knows no image yet; the test must be allowed `sockets`."""
    made = EngineSocket(tmp_path_factory.mktemp("e") / "s")
    monkeypatch.setenv("DOCKER_HOST", made.address)
    yield made
    made.close()


@pytest.fixture
def rlbox(folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Rlbox:
    """The command line, typed in the project folder."""
    monkeypatch.chdir(folder.path)
    return Rlbox(main, capsys)


@pytest.fixture
def follow(rlbox: Rlbox) -> Follow:
    """Follow what is advised."""
    return Follow(rlbox)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a file of tests/golden/expected, an `.xz` unpacked; `--update-golden` rewrites that file."""

    def compare(name: str, text: str) -> None:
        path = HERE / "golden/expected" / name
        is_packed = path.suffix == ".xz"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(lzma.compress(text.encode(), preset=9) if is_packed else text.encode())
        assert path.is_file(), f"{path} is missing: pytest --update-golden"
        expected = lzma.decompress(path.read_bytes()) if is_packed else path.read_bytes()
        assert text == expected.decode(), f"differs from {path}: pytest --update-golden, and review the diff"

    return compare
