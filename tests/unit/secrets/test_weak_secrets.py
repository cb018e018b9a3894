"""What is a secret, and what is a word of every log."""

from __future__ import annotations

import random
import string

import pytest

from rlbox.secrets.lookup import find_weakness

WORD = "a common word or name, or like one"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "shorter than 8 characters"),
        ("1234", "shorter than 8 characters"),
        ("true", "shorter than 8 characters"),
        ("hunter2", "shorter than 8 characters"),
        (" secret  \n", "shorter than 8 characters"),
        ("12345678", "a number"),
        ("2026-11-22 10:00", "a number"),
        ("xxxxxxxxxxxx", "the same few characters again and again"),
        ("http://localhost:8000", "an address"),
        ("/srv/models/qwen", "a path"),
        ("~/.cache/huggingface/token", "a path"),
        ("password", WORD),
        ("password1", WORD),
        ("Sommer2024!", WORD),
        ("training", WORD),
        ("checkpoint-1000", WORD),
        ("huggingface", WORD),
        ("HuggingFace", WORD),
        ("Qwen2.5-7B", WORD),
        ("OpenRLHF-0.8.2", WORD),
        ("train_batch_size", WORD),
        ("WANDB_API_KEY", WORD),
        ("your-token-here", WORD),
        ("deadbeefdeadbeef", WORD),
    ],
)
def test_too_weak(value: str, why: str) -> None:
    assert find_weakness(value) == why


@pytest.mark.parametrize(
    "value",
    [
        "hx_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
        "sk-proj-9aB3xY7kLm2Qp",
        "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567",
        "kX9#mP2q",
        "correct horse battery staple",
        "/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEX",
        "6f9619ff-8b86-d011-b42d-00cf4fc964ff",
        "-----BEGIN KEY-----\nMIIEvgIBADANBgkqhkiG9w0\n-----END KEY-----",
        "https://hooks.example.org/services/T0AB12/B0CD34/x7Yq9LmN2pQr",
        "\u6211\u7684\u5bc6\u7801\u5f88\u957f\u5f88\u957f",
    ],
)
def test_strong_enough(value: str) -> None:
    assert find_weakness(value) is None


@pytest.mark.parametrize(("letters", "size"), [(string.hexdigits[:16], 32), (string.ascii_letters + string.digits, 20)])
def test_what_services_make_is_strong(letters: str, size: int) -> None:
    drawn = random.Random(7)
    assert [
        value for value in ("".join(drawn.choices(letters, k=size)) for _ in range(2000)) if find_weakness(value)
    ] == []
