"""What the profile `tiny` needs, made without a network: a random Qwen3, decisions as PokerBench has them."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLACES = ("the button", "the small blind", "the big blind", "under the gun", "the cutoff")


def decisions(count: int, seed: int) -> list[dict[str, str]]:
    """Return `count` different decisions: `instruction` and `output`, which follows from the price of a call."""
    chance, found = random.Random(seed), {}
    while len(found) < count:
        pot, bet = chance.randrange(4, 60), chance.randrange(0, 40)
        place, cards = (
            chance.choice(PLACES),
            "".join(chance.choice("AKQJT98765432") + chance.choice("shdc") for _ in "ab"),
        )
        ask = f"You are in {place} with {cards}. The pot is {pot} chips, and it costs you {bet} to call. Your decision?"
        right = "check" if not bet else "fold" if bet > pot else "call" if bet * 2 > pot else f"raise {bet * 3}"
        found[ask] = {"instruction": ask, "output": right}
    return list(found.values())


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_model(out: Path, sizes: argparse.Namespace) -> None:
    """Write a Qwen3 of those sizes with random weights and a byte-level tokenizer as a Hugging Face folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=sizes.vocabulary, special_tokens=[*SPECIAL], initial_alphabet=alphabet)
    inner.train_from_iterator([text for row in decisions(400, 1) for text in row.values()], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.ffn,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.groups,
        head_dim=sizes.head_size,
        max_position_embeddings=8192,
        rope_theta=1000000,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for path in out.iterdir():  # transformers 5 writes weights that a server under another user cannot read
        path.chmod(0o644)


def main() -> None:
    """Write all of it; a model that is there stays."""
    parser = argparse.ArgumentParser(prog="holdem.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets model, train.jsonl, prompts.jsonl")
    for name in ("layers", "hidden", "ffn", "heads", "groups", "head-size", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "model/config.json").is_file():
        write_model(args.out / "model", args)
    write_rows(args.out / "train.jsonl", decisions(64, 2))
    write_rows(args.out / "prompts.jsonl", decisions(64, 3))
    print(f"[holdem][tiny] passed: {args.out}", flush=True)


if __name__ == "__main__":
    main()
