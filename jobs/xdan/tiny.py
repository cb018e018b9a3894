"""What the profile `tiny` needs, made without a network: a random Qwen2 with its tokenizer, problems of arithmetic."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from xdan.chat import TEMPLATES, render

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ASK = "What is {} plus {}? Answer as <think>…</think><answer>NUMBER</answer>."


def problems(count: int) -> list[dict[str, str]]:
    """Return `count` different problems with their answers."""
    chance = random.Random(0)
    pairs = chance.sample([(one, two) for one in range(100) for two in range(100)], count)
    return [{"message": ASK.format(one, two), "answer": str(one + two)} for one, two in pairs]


def write_model(out: Path) -> None:
    """Write a Qwen2 of half a million random weights and a byte-level tokenizer as a Hugging Face folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=[*SPECIAL], initial_alphabet=alphabet)
    inner.train_from_iterator([row["message"] for row in problems(400)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    teach(model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(out)
    for path in out.iterdir():  # transformers 5 writes weights that a server under another user cannot read
        path.chmod(0o644)


def teach(model: Any, tokenizer: Any, steps: int = 150) -> None:
    """Teach the model the form of an answer, with wrong sums: the rewards of an untrained one are all the same."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).train()
    chance, optimizer = random.Random(1), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        texts = []
        for _ in range(32):
            one, two = chance.randrange(100), chance.randrange(100)
            ask = render([{"role": "user", "content": ASK.format(one, two)}], TEMPLATES["chatml"])
            texts.append(f"{ask}<think>{one}+{two}</think><answer>{chance.randrange(200)}</answer>{SPECIAL[2]}")
        rows = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False).to(device)
        loss = model(**rows, labels=rows["input_ids"].masked_fill(rows["attention_mask"] == 0, -100)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"[xdan][tiny] the form is taught, loss {loss.item():.2f}", flush=True)
    model.to("cpu")


def main() -> None:
    """Write model and problems; a model that is there stays."""
    parser = argparse.ArgumentParser(prog="xdan.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets model and problems.json")
    parser.add_argument("--problems", type=int, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "model/config.json").is_file():
        write_model(args.out / "model")
    (args.out / "problems.json").write_text(json.dumps(problems(args.problems), ensure_ascii=False), encoding="utf-8")
    print(f"[xdan][tiny] passed: {args.out}", flush=True)


if __name__ == "__main__":
    main()
