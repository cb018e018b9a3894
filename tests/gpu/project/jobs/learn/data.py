"""Decisions of hold'em that follow from the price of a call, answers of which a share is wrong, and a random model."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLACES = ("the button", "the small blind", "the big blind", "under the gun", "the cutoff")


def decisions(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return `count` different questions, each with the action that is right."""
    chance, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        pot, bet, place = chance.randrange(4, 60), chance.randrange(0, 40), chance.choice(PLACES)
        cards = "".join(chance.choice("AKQJT98765432") + chance.choice("shdc") for _ in "ab")
        ask = f"You are in {place} with {cards}. The pot is {pot} chips, and it costs you {bet} to call. Your decision?"
        found[ask] = "check" if not bet else "fold" if bet > pot else "call" if bet * 2 > pot else "raise"
    return list(found.items())


def spoilt(rows: list[tuple[str, str]], wrong: float, seed: int) -> list[tuple[str, str]]:
    """Return the rows with another action in a share of them."""
    chance, actions = random.Random(seed), ("check", "fold", "call", "raise")
    return [
        (ask, chance.choice([word for word in actions if word != right]) if chance.random() < wrong else right)
        for ask, right in rows
    ]


def write_model(out: Path, sizes: argparse.Namespace, texts: list[str]) -> None:
    """Write a Qwen2 of those sizes with random weights and a byte-level tokenizer of 1,024 entries."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1024, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=1024,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.ffn,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.hidden // 64,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    print(f"[learn] {sum(weights.numel() for weights in model.parameters()) / 1e9:.3f} x 10^9 parameters", flush=True)
    model.to(torch.bfloat16).save_pretrained(out)


def conversation(ask: str, told: str) -> dict[str, Any]:
    """Return a row of verl's SFT."""
    return {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": told}]}


def question(number: int, ask: str, right: str, split: str) -> dict[str, Any]:
    """Return a row of verl's GRPO."""
    return {
        "data_source": "rlbox/holdem",
        "prompt": [{"role": "user", "content": ask}],
        "ability": "decide",
        "reward_model": {"style": "rule", "ground_truth": right},
        "extra_info": {"index": number, "split": split},
    }


def main() -> None:
    """Write four files and a model; no question is in two of them."""
    parser = argparse.ArgumentParser(prog="learn.data", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wrong", type=float, required=True)
    for name in ("sft-rows", "train-rows", "held-out", "layers", "hidden", "ffn"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    import pyarrow
    from pyarrow import parquet

    rows = decisions(args.sft_rows + args.train_rows + 2 * args.held_out)
    held, rows = rows[: args.held_out], rows[args.held_out :]
    val, rows = rows[: args.held_out], rows[args.held_out :]
    rl, sft = rows[: args.train_rows], spoilt(rows[args.train_rows :], args.wrong, 1)
    args.out.mkdir(parents=True, exist_ok=True)
    tables = {
        "sft": [conversation(*row) for row in sft],
        "sft_val": [conversation(*row) for row in spoilt(val, args.wrong, 2)],
        "rl": [question(number, *row, "train") for number, row in enumerate(rl)],
        "rl_val": [question(number, *row, "test") for number, row in enumerate(held)],
    }
    for name, table in tables.items():
        parquet.write_table(pyarrow.Table.from_pylist(table), args.out / f"{name}.parquet")
    if not (args.out / "model/config.json").exists():
        write_model(args.out / "model", args, [f"{ask} {told}" for ask, told in rl[:2000]])
    print(f"[learn] data passed: {', '.join(f'{name} {len(table)}' for name, table in tables.items())}", flush=True)


if __name__ == "__main__":
    main()
