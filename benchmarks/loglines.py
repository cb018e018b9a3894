"""A healthy log of a training that is hard on whoever looks for failures: its lines hold errors that are none."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

_BLOCKS = 48
_MIB = 1 << 20
_METRICS = (
    "actor/entropy", "actor/kl_loss", "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/grad_norm",
    "critic/score/mean", "critic/rewards/mean", "critic/advantages/mean", "response_length/mean", "prompt_length/mean",
    "response_length/clip_ratio", "timing_s/gen", "timing_s/reward", "timing_s/old_log_prob", "timing_s/update_actor",
    "perf/mfu/actor", "perf/max_memory_allocated_gb", "perf/throughput", "reward/error_rate", "reward/timeout_count",
)  # fmt: skip
_SAID = ["the", "sum", "of", "x", "=", "we", "have", "therefore", "if", "error", "is", "let", "return", "timeout",
         "assert", "for i in range(n):", "cannot", "find", "raise ValueError('bad input')", "答案"]  # fmt: skip


class LogMaker:
    """Makes lines from a seed: steps of a trainer, figures of engines, NCCL's notes, bars, answers of a model."""

    def __init__(self, seed: int = 7) -> None:
        self._dice = random.Random(seed)
        kinds: tuple[tuple[Callable[[], str], int], ...] = (
            (self._engine, 22), (self._decode, 14), (self._served, 18), (self._nccl, 8), (self._bar, 8),
            (self._iteration, 6), (self._step, 8), (self._harmless, 6), (self._answer, 10),
        )  # fmt: skip
        self._kinds = [kind for kind, weight in kinds for _ in range(weight)]
        self.number = 0

    def block(self) -> bytes:
        """Return about a MiB of whole lines."""
        lines: list[bytes] = []
        size = 0
        while size < _MIB:
            lines.append(f"{self._dice.choice(self._kinds)()}\n".encode())
            size += len(lines[-1])
        return b"".join(lines)

    def _below(self, most: int) -> int:
        return self._dice.randrange(most)

    def _real(self, most: float) -> str:
        return f"{self._dice.uniform(0, most):.6f}"

    def _clock(self) -> str:
        return f"2026-01-{self._below(28) + 1:02} {self._below(24):02}:{self._below(60):02}:{self._below(60):02}"

    def _pid(self) -> int:
        return 1000 + self._below(400_000)

    def _address(self) -> str:
        return f"10.{self._below(256)}.{self._below(256)}.{self._below(256)}"

    def _step(self) -> str:
        self.number += 1
        figures = " - ".join(f"{name}:{self._real(9)}" for name in _METRICS)
        return f"(TaskRunner pid={self._pid()}) step:{self.number} - {figures}"

    def _engine(self) -> str:
        speed, memory = f"{self._below(9000)}.{self._below(10)}", f"{self._below(100)}.{self._below(10)}"
        return (
            f"(WorkerDict pid={self._pid()}, ip={self._address()}) INFO {self._clock()[5:]} [loggers.py:127] Engine "
            f"000: Avg prompt throughput: {speed} tokens/s, Avg generation throughput: {speed} tokens/s, Running: "
            f"{self._below(256)} reqs, Waiting: 0 reqs, GPU KV cache usage: {memory}%, Prefix cache hit rate: {memory}%"
        )

    def _decode(self) -> str:
        return (
            f"[{self._clock()} TP{self._below(8)}] Decode batch, #running-req: {self._below(256)}, #token: "
            f"{self._below(90000)}, token usage: 0.{self._below(100):02}, cuda graph: True, gen throughput (token/s): "
            f"{self._below(9000)}.00, #queue-req: {self._below(20)},"
        )

    def _served(self) -> str:
        return (
            f"(SGLangEngine pid={self._pid()}) [{self._clock()}] INFO:     {self._address()}:{self._pid()}"
            ' - "POST /generate HTTP/1.1" 200 OK'
        )

    def _nccl(self) -> str:
        gpu = self._below(8)
        return (
            f"node{self._below(64)}:{self._pid()}:{self._pid()} [{gpu}] NCCL INFO Channel {self._below(32):02}/0 : "
            f"{self._below(64)}[{gpu}] -> {self._below(64)}[{gpu}] [send] via NET/IB/{gpu}/GDRDMA/Shared"
        )

    def _bar(self) -> str:
        done = self._below(10)
        return (
            f"Training Progress:  {self._below(100)}%|{'█' * done}{' ' * (10 - done)}| {self._below(5000)}/5000 "
            f"[{self._below(60):02}:{self._below(60):02}<00:{self._below(60):02}, {self._real(99)}s/it]"
        )

    def _iteration(self) -> str:
        return (
            f" [{self._clock()}] iteration {self._below(9999):8}/    9999 | consumed samples: {self._below(9**8):12} | "
            f"elapsed time per iteration (ms): {self._real(9999)} | lm loss: {self._real(9)}E+00 | grad norm: "
            f"{self._real(1)} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )

    def _harmless(self) -> str:
        return self._dice.choice((
            f"(WorkerDict pid={self._pid()}) torch/distributed/fsdp/_state_dict.py:77: FutureWarning: deprecated.",
            f"(TaskRunner pid={self._pid()}) reward retry: attempt {self._below(3)}/3 timeout=30s failed=0 errors=0",
            f"(TaskRunner pid={self._pid()}) 'nccl_timeout': 600, 'error_if_nonfinite': False,",
            f"(pid={self._pid()}) WARNING 01-12 [config.py:9] Casting to bfloat16; out-of-memory guard enabled",
            "tracker: synced 3 file(s); exception hooks installed, no error",
        ))  # fmt: skip

    def _answer(self) -> str:
        words = " ".join(self._dice.choice(_SAID) for _ in range(20 + self._below(140)))
        return f"(TaskRunner pid={self._pid()}) [response] {words}"


def write_log(path: Path, size: int, seed: int = 7) -> None:
    """Write a healthy log of at least `size` bytes, the same for the same seed."""
    make, dice = LogMaker(seed), random.Random(seed)
    blocks = [make.block() for _ in range(min(_BLOCKS, max(1, size // _MIB)))]
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(dice.choice(blocks))
