"""Make a small Qwen2 that answers sums with a program, by a real training: `small_model.py OUT [STEPS [SEED [LINES]]]`.

Its interpreter has torch and transformers. Some of its programs are right, some are wrong, some are none; each has so
many further LINES, of some six tokens. Where STEPS are several (40,50), OUT gets a folder global_step_N for each.
"""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
ROWS, BATCH, FEWER = 96, 24, 6


def pairs(lines: int) -> list[tuple[str, str]]:
    """Return what is asked and what is answered."""
    more = "".join(f"part_{at} = one + {at}\n" for at in range(lines))
    found = []
    for number in range(ROWS):
        one, other = number % 24, number // 24
        program = f"# {one} and {other}\none = {one}\nother = {other}\n{more}print(one + other)"
        found.append((f"Write a program that prints {one} plus {other}.", f"```python\n{program}\n```"))
    return found


def main() -> None:
    """Train, and write the export."""
    out, steps = Path(sys.argv[1]), [int(word) for word in (sys.argv[2] if sys.argv[2:] else "200").split(",")]
    outs = {at: out / f"global_step_{at}" if steps[1:] else out for at in steps}
    seed, lines = (int(sys.argv[at]) if sys.argv[at:] else 0 for at in (3, 4))
    asked = pairs(lines)
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([text for pair in asked for text in pair], trainer)
    words = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    words.chat_template = TEMPLATE
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=(len(words) + 63) // 64 * 64, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).float()
    rng, done = random.Random(seed), 0
    for step, folder in outs.items():
        learn(model, words, asked, step - done, rng)
        done = step
        words.save_pretrained(folder)
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
        for path in folder.iterdir():  # transformers 5 writes weights that a server under another user cannot read
            path.chmod(0o644)


def learn(
    model: Qwen2ForCausalLM,
    words: PreTrainedTokenizerFast,
    asked: list[tuple[str, str]],
    steps: int,
    rng: random.Random,
) -> None:
    """Take steps of supervised training."""
    texts = [
        words.apply_chat_template([{"role": "user", "content": ask}], tokenize=False, add_generation_prompt=True)
        + f"{answer}<|im_end|>"
        for ask, answer in asked
    ]
    rows = [words(text)["input_ids"] for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        batch = rng.sample(rows, BATCH if len(rows[0]) < 128 else FEWER)
        longest = max(map(len, batch))
        ids = torch.tensor([row + [words.pad_token_id] * (longest - len(row)) for row in batch])
        labels = ids.masked_fill(ids == words.pad_token_id, -100)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
