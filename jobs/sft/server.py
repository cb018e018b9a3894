"""The inference server of one checkpoint: started and stopped by the evaluation, never left behind (P181)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sft import eval_config
from sft.web import AskError, Server

_PR_SET_PDEATHSIG = 1


class ServerError(Exception):
    """The server did not come up, or serves something else; the text says where to look."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How a checkpoint is served: `kind` is vllm, or hf for the job's own small server over transformers."""

    kind: str
    port: int
    tensor_parallel: int
    gpu_memory: float
    max_model_len: int
    start_s: float
    dtype: str = "bfloat16"

    def argv(self, export: Path) -> tuple[str, ...]:
        """Return the command that serves `export` on loopback (P184)."""
        if self.kind == "hf":
            return (sys.executable, "-m", "sft.hf_server", "--model", str(export), "--port", str(self.port))
        return (
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(export)),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--tensor-parallel-size", str(self.tensor_parallel)),
            *("--gpu-memory-utilization", str(self.gpu_memory)),
            *("--max-model-len", str(self.max_model_len), "--dtype", self.dtype, "--trust-remote-code"),
        )


@contextlib.contextmanager
def serve(engine: Engine, export: Path, log: Path) -> Iterator[str]:
    """Serve `export` while the block runs and yield the server's address; its output goes to `log`.

    It is a process group of its own that gets SIGTERM when this process dies, however it dies.
    """
    if engine.max_model_len < eval_config.MAX_NEW_TOKENS:
        raise ServerError(
            f"--max-model-len {engine.max_model_len} has no room for {eval_config.MAX_NEW_TOKENS} new tokens"
        )
    url = f"http://127.0.0.1:{engine.port}"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        process = subprocess.Popen(
            engine.argv(export), stdout=stream, stderr=stream, start_new_session=True, preexec_fn=_die_with_parent
        )
    try:
        _wait(process, url, log, engine.start_s)
        yield url
    finally:
        _stop(process)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the inference server ended with status {process.returncode}; read {log}")
        with contextlib.suppress(ServerError):
            served_model(url)
            return
        time.sleep(0.5)
    raise ServerError(f"the inference server was not ready after {start_s:.0f} s; read {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: what the server started must be gone before the next checkpoint needs the GPU."""
    for number, patience_s in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        if process.poll() is not None and not _group_lives(process.pid, patience_s):
            return


def _group_lives(group: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        time.sleep(0.1)
    return True


def served_model(url: str) -> str:
    """Return the id of the one model that is served at `url`; two would leave open which of them answers (P195)."""
    server = Server(url, wait_s=5, at_once=1)
    try:
        names = [entry["id"] for entry in server.read("/v1/models", server.ask("/v1/models"))["data"]]
    except AskError as error:
        raise ServerError(str(error)) from error
    except (KeyError, TypeError) as error:
        raise ServerError(f"{url}/v1/models: {type(error).__name__}: {error}") from error
    if len(names) != 1:
        raise ServerError(f"{url} serves {len(names)} models ({', '.join(names)}): which of them would answer?")
    return str(names[0])
