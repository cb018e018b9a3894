"""What the profile `tiny` needs, made without a network: a random student, a random teacher, prompts."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def rows(count: int) -> list[dict[str, Any]]:
    """Return `count` different conversations in the form that verl reads."""
    chance = random.Random(0)
    pairs = chance.sample([(one, two) for one in range(100) for two in range(100)], count)
    return [
        {
            "data_source": "rlbox/fake",
            "prompt": [{"role": "user", "content": f"What is {one} plus {two}? Say how you found it."}],
            "reward_model": {"style": "rule", "ground_truth": str(one + two)},
            "extra_info": {"index": number},
        }
        for number, (one, two) in enumerate(pairs)
    ]


def tokenizer_of(texts: list[str]) -> Any:
    """Return a byte-level tokenizer of 512 entries with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=[*SPECIAL], initial_alphabet=alphabet)
    inner.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def write_model(out: Path, tokenizer: Any, width: int, seed: int) -> None:
    """Write a Qwen3 of two layers with random weights as a Hugging Face folder; one that is there stays."""
    if (out / "config.json").is_file():
        return
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer.save_pretrained(out)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        initializer_range=0.06,  # a teacher whose tokens are not all alike
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for path in out.iterdir():  # transformers 5 writes weights that a server under another user cannot read
        path.chmod(0o644)


def main() -> None:
    """Write models and prompts."""
    parser = argparse.ArgumentParser(prog="gkd.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets student, teacher, train.parquet")
    parser.add_argument("--rows", type=int, required=True)
    args = parser.parse_args()
    import pyarrow
    from pyarrow import parquet

    args.out.mkdir(parents=True, exist_ok=True)
    found = rows(args.rows)
    tokenizer = tokenizer_of([row["prompt"][0]["content"] for row in rows(400)])
    write_model(args.out / "student", tokenizer, 256, 0)
    write_model(args.out / "teacher", tokenizer, 512, 1)
    parquet.write_table(pyarrow.Table.from_pylist(found), args.out / "train.parquet")
    print(f"[gkd][tiny] passed: {args.out}", flush=True)


if __name__ == "__main__":
    main()
