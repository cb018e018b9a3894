"""record.py FOLDER ROWS: write rows as trainers do (tensorboardX 2.6.5, torch 2.13, tensorboard 2.21, wandb 0.31)."""

import contextlib
import importlib
import json
import sys
from pathlib import Path

folder, rows = Path(sys.argv[1]), list(enumerate(json.loads(sys.argv[2]), 1))
output = importlib.import_module("tensorboard.summary._output").DirectoryOutput(str(folder / "tensors"))
writers = [importlib.import_module("tensorboard.summary").Writer(output)]
for module in ("tensorboardX", "torch.utils.tensorboard"):
    with contextlib.suppress(ImportError):
        writers.append(importlib.import_module(module).SummaryWriter(str(folder / module)))
for writer in writers:
    for step, name, value in ((step, *item) for step, row in rows for item in row.items()):
        writer.add_scalar(name, value, **{"step" if writer is writers[0] else "global_step": step})
    writer.close()

wandb = importlib.import_module("wandb")
settings = wandb.Settings(mode="offline", x_disable_stats=True, x_disable_meta=True, console="off", silent=True)
run = wandb.init(project="p", name="n", dir=str(folder), settings=settings)
for step, row in rows:
    run.log({**row, "prompt": "x" * 2000}, step=step)  # fragments over more than one block
run.finish()

dumps = importlib.import_module("orjson").dumps  # verl's file logger
(folder / "verl.jsonl").write_bytes(b"".join(dumps({"step": step, "data": row}) + b"\n" for step, row in rows))
for last in (20, 40):  # as Transformers' TrainerState.save_to_json
    path = folder / f"hf/checkpoint-{last}/trainer_state.json"
    path.parent.mkdir(parents=True)
    state = {"global_step": last, "log_history": [{"step": step, **row} for step, row in rows[:last]]}
    path.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
