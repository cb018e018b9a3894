"""A random Qwen2 of half a million weights with its tokenizer, made without a network, for the profile `tiny`."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)


def write_model(out: Path) -> None:
    """Write the model as a Hugging Face folder; one that is there stays."""
    if (out / "config.json").is_file():
        return
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special, alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet)
    texts = [f"What is {one} plus {two}? Answer with the number." for one in range(20) for two in range(20)]
    inner.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    vocabulary = (len(tokenizer) + 63) // 64 * 64
    config = Qwen2Config(vocab_size=vocabulary, tie_word_embeddings=False, **sizes, **heads, **ends)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for path in out.iterdir():  # transformers 5 writes weights that a server under another user cannot read
        path.chmod(0o644)
