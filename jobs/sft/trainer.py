"""verl's SFT trainer, `sft.trainer KEY=VALUE…`, with FSDP2's own offload made to work where it is asked for.

verl 0.7.0 takes `engine.offload_policy` and breaks it twice: before a step its engine moves all weights to the GPU,
which FSDP2 refuses ("FSDP parameters should be materialized on CPU"), and its process group speaks NCCL alone, while
norms of gradients that lie in host memory want a backend for the CPU.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

TRAINER = "verl.trainer.sft_trainer"
ASKED = "engine.offload_policy=True"


def keep_on_host(engine: Any) -> None:
    """Have the engine class move nothing itself where FSDP2 moves what a layer needs.

    Source: verl v0.7.0 verl/workers/engine/base.py `_context_switch`, fsdp/transformer_impl.py `to`.
    """
    moves = engine.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if self.engine_config.offload_policy else moves(self, *args, **kwargs)

    engine.to = to


def names_both(module: Any) -> bool:
    """Whether verl's module of process groups names a backend for the CPU by itself, as that of 0.9 does."""
    path = getattr(module, "__file__", None)
    return bool(path) and "cpu:gloo" in Path(path).read_text(encoding="utf-8")


def main() -> None:
    """Run the trainer as `python -m` would."""
    if ASKED in sys.argv[1:]:
        from verl.utils import distributed
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

        keep_on_host(FSDPEngine)
        if not names_both(distributed):
            distributed.get_nccl_backend = lambda: "cpu:gloo,cuda:nccl"
    runpy.run_module(TRAINER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
