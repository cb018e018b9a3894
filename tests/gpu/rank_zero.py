"""Rank 0 of job `sft`'s training, alone on a GPU, with as much of it as another card has: `rank_zero.py JSON`.

peak is that of a rank of the real training. Not in it is what NCCL and CUDA's context take beside the allocator, and
the time that ranks wait for each other; sums over ranks are this rank's alone, so that loss and gradient are fourfold.
Weights are random, and made where the file's would be read: in host memory, in fp32. The kernels are those of the GPU
that is there. Nothing is saved or validated: the process ends after its steps.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

GIB = 1 << 30
TOLD = json.loads(sys.argv[1])
"""words: the trainer's; world: its ranks; cap: bytes of the GPU, 0: all; steps: how many; threads: of the CPU that make
them, 0: one a core; note: file for findings."""
FOUND: dict[str, Any] = {"steps": []}


class Enough(BaseException):
    """The steps are made; no `Exception`, so that nobody on the way catches it."""


def write_note(**more: Any) -> None:
    """Write what is known by now, so that a process that is killed leaves it."""
    FOUND.update(more)
    FOUND["host_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 2)
    pinned = torch.cuda.host_memory_stats() if torch.cuda.is_available() else {}
    FOUND["pinned_gib"] = round(pinned.get("allocated_bytes.peak", 0) / GIB, 2)
    part = Path(f"{TOLD['note']}.part")
    part.write_text(json.dumps(FOUND))
    part.rename(TOLD["note"])


def peaks() -> dict[str, float]:
    """Return the allocator's peaks since they were last asked for, and what is allocated now."""
    torch.cuda.synchronize()
    now = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    held, allocated, reserved = (round(size / GIB, 2) for size in now)
    for key, size in (("peak_allocated_gib", allocated), ("peak_reserved_gib", reserved)):
        FOUND[key] = max(size, FOUND.get(key, 0.0))
    return {"allocated_gib": allocated, "reserved_gib": reserved, "held_gib": held}


def fake_the_others(world: int) -> None:
    """Have `init_process_group` make a group of `world` ranks of which this is the first and the others do not exist.

    It speaks for the devices that the asked backend would speak for, so that what NCCL cannot do fails here, too.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    begin = dist.init_process_group

    def init_process_group(backend: str, **_: Any) -> None:
        asked = backend if ":" in backend else f"cuda:{backend}"
        devices = [pair.partition(":")[0] for pair in asked.split(",")]
        begin(",".join(f"{device}:fake" for device in devices), store=FakeStore(), rank=0, world_size=world)

    def reduce_scatter_tensor(output: torch.Tensor, input: torch.Tensor, *_: Any, **__: Any) -> None:
        # the fake one leaves the output as it was, and a norm of what lay there may be none: no step would be made
        output.copy_(input.chunk(world)[0])

    dist.init_process_group = init_process_group
    dist.reduce_scatter_tensor = reduce_scatter_tensor
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def draw_weights() -> None:
    """Have `from_pretrained` make random weights where it would read them: a file of them would be 15 GB."""
    from transformers import AutoModelForCausalLM
    from transformers.modeling_utils import no_init_weights

    block = torch.randn(1 << 24, generator=torch.Generator().manual_seed(1)) * 0.02

    def from_pretrained(*_: Any, config: Any, torch_dtype: torch.dtype, **__: Any) -> Any:
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(config, torch_dtype=torch_dtype)
        for name, weight in model.named_parameters():
            flat = weight.data.view(-1)
            if weight.dim() == 1:
                flat.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            for part in flat.split(len(block)):
                part.copy_(block[: len(part)])
        model.tie_weights()
        return model.eval()

    AutoModelForCausalLM.from_pretrained = from_pretrained


def count_steps(train: Callable[..., Any]) -> Callable[..., Any]:
    """Return the trainer's `train_batch` with its seconds and peaks noted, which ends after the last step."""
    from verl.utils import tensordict_utils

    def train_batch(worker: Any, data: Any) -> Any:
        if not FOUND["steps"]:
            torch.set_num_threads(TOLD["threads"] or torch.get_num_threads())
            write_note(loaded=peaks(), threads=torch.get_num_threads())
        began = time.monotonic()
        done = train(worker, data=data)
        update_s = FOUND.pop("update_s")
        metrics = tensordict_utils.get(done, "metrics")
        memory = peaks()
        step = {
            "s": round(time.monotonic() - began, 2),
            "update_s": update_s,
            "tokens": int(data["input_ids"].offsets()[-1]),
            "updated": len(worker.engine.optimizer.state),  # tensors of weights that AdamW has moments of
            "loss": metrics["loss"],
            "grad_norm": metrics["grad_norm"],
        }
        FOUND["steps"].append(step | memory)
        write_note()
        if len(FOUND["steps"]) >= TOLD["steps"]:
            raise Enough
        return done

    return train_batch


def time_update(update: Callable[..., Any]) -> Callable[..., Any]:
    """Return the engine's `optimizer_step`, which clips gradients and updates weights, with its seconds noted."""

    def optimizer_step(engine: Any) -> Any:
        torch.cuda.synchronize()
        began = time.monotonic()
        norm = update(engine)
        torch.cuda.synchronize()
        FOUND["update_s"] = round(time.monotonic() - began, 2)
        return norm

    return optimizer_step


def main() -> None:
    """Cap the GPU, put the stand-ins in place, run the trainer, and note how it ended."""
    card = torch.cuda.get_device_properties(0)
    if TOLD["cap"]:
        torch.cuda.set_per_process_memory_fraction(TOLD["cap"] / card.total_memory)
    fake_the_others(TOLD["world"])
    draw_weights()
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
    from verl.workers.engine_workers import TrainingWorker

    FSDPEngine.optimizer_step = time_update(FSDPEngine.optimizer_step)
    TrainingWorker.train_batch = count_steps(TrainingWorker.train_batch)
    write_note(gpu=card.name, torch=torch.__version__, result="ended before its steps were made")
    sys.argv = ["verl.trainer.sft_trainer", *TOLD["words"]]
    try:
        runpy.run_module("verl.trainer.sft_trainer", run_name="__main__", alter_sys=True)
    except Enough:
        write_note(result="fits")
    except torch.OutOfMemoryError as error:
        where = f"step {len(FOUND['steps']) + 1}" if "loaded" in FOUND else "loading"
        peaks()
        write_note(result=f"out of memory, {where}: {str(error).splitlines()[0]}")
    except Exception as error:
        traceback.print_exc()
        write_note(result=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what is pinned and shared need not be handed back piece by piece


if __name__ == "__main__":
    main()
