"""`rlbox mcp` over standard input and output, with the client of the official SDK."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from fakes import CASES, CHECKOUT, Folder, Rlbox
from mcp import Client, StdioServerParameters, stdio_client

pytestmark = pytest.mark.allow("processes", "sockets")
TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "plan": ({"job": "smoke", "settings": ["rollouts=4"]}, "plan smoke --set rollouts=4 --json"),
    "stack": ({"target": "local"}, "stack local --json"),
    "lint": ({"files": ["train.sh"], "target": "local"}, "lint train.sh --target local --json"),
    "diagnose": ({"logs": ["train.log"]}, "diagnose train.log --json"),
    "fixes": ({"action": "explain", "name": "local"}, "fixes explain local --json"),
    "doctor": ({}, "doctor --json"),
}


@pytest.fixture
def project(folder: Folder) -> Path:
    shutil.copy(CASES / "reports/weights-to-a-sleeping-engine/train.log", folder.path)
    folder.write("train.sh", "export NCCL_ASYNC_ERROR_HANDLING=1\n")
    folder.write("secret.log", f"Traceback (most recent call last):\nRuntimeError: 401 for token {TOKEN}\n")
    folder.write("json.py", "raise SystemExit('imported from the project folder')\n")
    return folder.path


def with_client(project: Path, use: Callable[[Client], Awaitable[None]]) -> None:
    argv = ["-c", "from rlbox.cli import main; main()", "mcp", "--project", str(project)]
    server = StdioServerParameters(command=sys.executable, args=argv, env={"PYTHONPATH": str(CHECKOUT)}, cwd="/")

    async def connect() -> None:
        async with Client(stdio_client(server)) as client:
            await use(client)

    before = psutil.Process().children()  # of other tests in this process
    anyio.run(connect)
    assert psutil.Process().children() == before


def test_each_tool_returns_the_json_of_its_command(project: Path, rlbox: Rlbox) -> None:
    async def use(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == list(CALLS)
        for tool in tools:
            assert tool.annotations and tool.annotations.read_only_hint and tool.description  # noqa: PT018
            assert all("description" in argument for argument in tool.input_schema["properties"].values())
            arguments, line = CALLS[tool.name]
            result = await client.call_tool(tool.name, arguments)
            assert not result.is_error, result.content
            assert {**(result.structured_content or {}), "seconds": 0} == {**rlbox(*line.split()).data, "seconds": 0}
        diagnosis = await client.call_tool("diagnose", {"logs": ["secret.log"]})
        assert "401 for token ***" in str(diagnosis)
        assert TOKEN not in str(diagnosis)

    with_client(project, use)


def test_a_failure_is_a_tool_error(project: Path) -> None:
    async def use(client: Client) -> None:
        for tool, argument, value, words in (
            ("stack", "target", "locl", ("unknown target 'locl'", "where:", "next:  choose one of")),
            ("plan", "target", "local", ("job", "Field required")),
            ("lint", "files", ["../other.sh"], ("../other.sh is outside the project folder", "next:")),
            ("diagnose", "logs", ["/etc/passwd"], ("/etc/passwd is outside the project folder",)),
            ("diagnose", "logs", ["--ask=touch made"], ("no run '--ask=touch made'",)),
        ):
            result = await client.call_tool(tool, {argument: value})
            assert result.is_error
            assert all(word in str(result.content) for word in words), result.content

    with_client(project, use)
    assert not (project / "made").exists()


@pytest.mark.slow
def test_fifty_calls_leave_no_process_and_no_open_file(project: Path) -> None:
    async def use(client: Client) -> None:
        server = psutil.Process().children()[-1]
        left = set()
        for _ in range(50):
            assert not (await client.call_tool("stack", {"target": "local"})).is_error
            left.add((len(server.children(recursive=True)), server.num_fds()))
        assert len(left) == 1

    with_client(project, use)


def test_without_the_sdk_the_next_step_installs_it(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    rlbox("mcp").check_error(2, "needs the MCP SDK", "pip install 'rlbox[mcp]'")
