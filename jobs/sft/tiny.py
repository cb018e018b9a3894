"""What the profile `tiny` needs, made without a network: a model of half a million weights, conversations, problems."""

from __future__ import annotations

import json
from pathlib import Path

from sft import eval_config
from sft.files import MAPPING, TRAIN, VAL, Messages, write_parquet

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)


def write_model(out: Path) -> None:
    """Write a random Qwen2 with a byte-level tokenizer of 1,024 entries, as a Hugging Face folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    texts = [turn["content"] for row in conversations(400) for turn in row]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special, alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=special, initial_alphabet=alphabet)
    inner.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for path in out.iterdir():  # transformers 5 writes weights that a server under another user cannot read
        path.chmod(0o644)


def conversations(count: int) -> list[Messages]:
    """Return `count` different conversations about sums, each answered with a program."""
    rows = []
    for number in range(count):
        ask = f"Write a program that prints {number % 60} plus {number // 60}."
        told = f"```python\nprint({number % 60} + {number // 60})\n```"
        rows.append([{"role": "user", "content": ask}, {"role": "assistant", "content": told}])
    return rows


def write_problems(raw: Path, each: int = 3) -> None:
    """Write every raw problem set with `each` problems."""
    raw.mkdir(parents=True, exist_ok=True)
    for name in eval_config.TIERS[3]:
        rows = [_problem(name, number) for number in range(each)]
        (raw / eval_config.raw_file(name)).write_text("".join(json.dumps(row) + "\n" for row in rows))


def _problem(name: str, number: int) -> dict[str, object]:
    if name == "humaneval":
        prompt = f'def add(x):\n    """Return x plus {number}."""\n'
        test = f"def check(f):\n    assert f(1) == {1 + number}\n"
        return {"task_id": f"HumanEval/{number}", "prompt": prompt, "entry_point": "add", "test": test}
    if name == "mbpp_reg":
        tests = [f"assert add(1) == {1 + number}"]
        return {"task_id": number, "text": f"Write a function add(x) that adds {number}.", "test_list": tests}
    public = {"input": [f"{value}\n" for value in (1, 2)], "output": [f"{value + number}\n" for value in (1, 2)]}
    return {"name": f"{name}-{number}", "description": f"Read x, print x plus {number}.", "public_tests": public}


def write_all(model: Path, folder: Path, raw: Path) -> None:
    """Write the model, the parquet files and the problem sets; a model that is there stays."""
    if not (model / "config.json").is_file():
        write_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    rows = conversations(288)
    write_parquet(folder / TRAIN, rows[:256])
    write_parquet(folder / VAL, rows[256:])
    mapping = {"train": list(range(256)), "val": list(range(256, 288))}
    (folder / MAPPING).write_text(json.dumps(mapping))
    write_problems(raw)
    print(f"[tiny] model {model}, data {folder}, problems {raw}", flush=True)
