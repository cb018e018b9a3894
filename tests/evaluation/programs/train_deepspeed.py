"""Run by an interpreter with DeepSpeed: a small model under ZeRO 1, 2 and 3 on two processes, and their exports.

In argv[1], which train_small.py has filled: `zeroN` with DeepSpeed's `latest` and `global_step2`, and `zeroN/export`.
"""

import os
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import train_small


def settings(stage):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }


def train(rank, world, stage, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    import deepspeed

    model = train_small.small()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), dist_init_required=False, config=settings(stage)
    )
    for step in range(2):
        words = torch.arange(16)[None] + step
        engine.backward(engine(input_ids=words, labels=words).loss)
        engine.step()
    folder = train_small.OUT / f"zero{stage}"
    engine.save_checkpoint(str(folder), tag="global_step2")
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        if rank == 0:
            state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            train_small.export(state, Path(folder) / "export", torch.bfloat16)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for stage in (1, 2, 3):
        mp.spawn(train, (2, stage, 30000 + os.getpid() % 900 + stage), 2)
