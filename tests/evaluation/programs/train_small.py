"""Run by an interpreter with torch and transformers: train a small model under FSDP2 on three processes, and export it.

In argv[1]: `base` (the model before), `global_step_3` (verl's layout: shards of ranks, an export in bfloat16 below it),
`fp32` (an export without a cast), `two` (the same under HSDP, two copies of two pieces).
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

OUT = Path(sys.argv[1])
TIED = len(sys.argv) > 2


def small():
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=TIED,
    )
    return transformers.Qwen2ForCausalLM(config)


def save_tokenizer(folder):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words = ["<eos>", "<pad>"]
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=words, initial_alphabet=letters)
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog", "def add(x): return x + 1"] * 9, trainer)
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=words[0], pad_token=words[1])
    whole.chat_template = "{{ messages[0]['content'] }}"
    whole.save_pretrained(folder)


def export(state, folder, dtype, **options):
    model = small()
    model.load_state_dict(state)
    model.to(dtype).save_pretrained(folder, **options)
    transformers.PreTrainedTokenizerFast.from_pretrained(OUT / "base").save_pretrained(folder)


def shards(folder, model, world, rank):
    folder.mkdir(exist_ok=True)
    torch.save(model.state_dict(), folder / f"model_world_size_{world}_rank_{rank}.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))


def train(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    names = ("ddp", "fsdp") if world == 4 else ("fsdp",)
    torch.set_num_threads(1)  # several processes share the cores
    mesh = init_device_mesh("cpu", (2, 2) if world == 4 else (world,), mesh_dim_names=names)
    model = small()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        words = torch.arange(16)[None] + step
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = OUT / ("two" if world == 4 else "global_step_3")
    shards(folder, model, world, rank)
    whole = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    if rank == 0:
        export(whole, folder / "huggingface", torch.bfloat16, max_shard_size="30KB")
        if world != 4:
            export(whole, OUT / "fp32", torch.float32)
    dist.destroy_process_group()


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    small().to(torch.bfloat16).save_pretrained(OUT / "base")
    save_tokenizer(OUT / "base")
    for ranks in (3, 4):
        mp.spawn(train, (ranks, 29000 + os.getpid() % 900 + ranks), ranks)
