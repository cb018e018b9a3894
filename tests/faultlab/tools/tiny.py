"""Make a small random Qwen2 with a tokenizer of its own: `tiny.py FOLDER HIDDEN_SIZE`."""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet)
tokenizer.train_from_iterator([f"What is {a} plus {b}? It is {a + b}." for a in range(40) for b in range(40)], trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
fast.chat_template = TEMPLATE
fast.save_pretrained(sys.argv[1])
torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=512,
    hidden_size=int(sys.argv[2]),
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=fast.eos_token_id,
    pad_token_id=fast.pad_token_id,
)
Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
