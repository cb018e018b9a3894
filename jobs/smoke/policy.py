"""The policy: a small Qwen3 decoder with random weights and a BPE tokenizer trained on the prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TAGS = ("<action>", "</action>")  # one token each: an answer is four tokens, tag, action, tag, end
SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>")
LONGEST = 256  # tokens of prompt and answer; prompts take 60 to 80


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of the decoder."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    vocabulary: int = 512


def make_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Return a `PreTrainedTokenizerFast` trained on `texts`, with the chat template; `<|end|>` ends an answer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TAGS),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|end|>", pad_token="<|pad|>", model_max_length=LONGEST
    )
    tokenizer.add_tokens(list(TAGS))
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: Any, shape: Shape, seed: int) -> Any:
    """Return a float32 `Qwen3ForCausalLM` with random weights.

    The output head is not tied to the embedding. Source: vLLM 0.32.0 on CPU repacks the head when it first loads it,
    and `reload_weights` leaves a tied head as it was: the server answers with new layers under the old head.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads // 2,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).float()
