"""What is a secret, and what is a word of every log."""

from __future__ import annotations

import pytest

from rlbox.secrets.lookup import explain_secret_weakness

WORD = "a word or a name without a digit"


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
        ("http://localhost:8000", "an address"),
        ("/srv/models/qwen", "a path"),
        ("~/.cache/huggingface/token", "a path"),
        ("password", WORD),
        ("training", WORD),
        ("huggingface", WORD),
        ("train_batch_size", WORD),
        ("WANDB_API_KEY", WORD),
        ("your-token-here", WORD),
        ("deadbeefdeadbeef", WORD),
    ],
)
def test_too_weak(value: str, why: str) -> None:
    assert explain_secret_weakness(value) == why


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
    ],
)
def test_strong_enough(value: str) -> None:
    assert explain_secret_weakness(value) is None
