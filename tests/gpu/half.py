"""Make a model of half a billion random weights from a tiny one: `half.py TINY OUT`; its tokenizer and vocabulary stay.

32 layers of 1024 with an MLP of 4608: 0.53 billion parameters without the embeddings.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 4608,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def main() -> None:
    """Write it beside the files of the tokenizer."""
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.is_file():
            shutil.copy(path, out / path.name)
    config = AutoConfig.from_pretrained(source)
    known = config.to_dict()
    kinds = {"layer_types": ["full_attention"] * SHAPE["num_hidden_layers"]} if known.get("layer_types") else {}
    config.update({name: value for name, value in (SHAPE | kinds).items() if name in known or name != "head_dim"})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(out)
    count = sum(weight.numel() for weight in model.parameters())
    for path in out.iterdir():
        path.chmod(0o644)
    print(f"{out}: {count / 1e9:.2f} billion parameters")


if __name__ == "__main__":
    main()
