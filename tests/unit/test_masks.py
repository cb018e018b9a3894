"""Secrets stay out of what people read."""

from __future__ import annotations

from rlbox.plan.masks import Masks

ENVIRONMENT = {
    "RLBOX_SECRETS": "WANDB, EMPTY,ABSENT",
    "WANDB": "planted",
    "EMPTY": "",
    "HF_TOKEN": "hf-value",
    "TOKENIZERS_PARALLELISM": "false",
    "URL": "http://planted@host",
}


def test_environment() -> None:
    assert Masks(ENVIRONMENT).environment(ENVIRONMENT) == {
        "EMPTY": "",
        "HF_TOKEN": "***",
        "RLBOX_SECRETS": "WANDB, EMPTY,ABSENT",
        "TOKENIZERS_PARALLELISM": "false",
        "URL": "http://***@host",
        "WANDB": "***",
    }


def test_tree() -> None:
    assert Masks(ENVIRONMENT).tree({"a": ["x planted", 1, None, ("planted",)]}) == {"a": ["x ***", 1, None, ["***"]]}


def test_longer_secrets_first_and_short_ones_never() -> None:
    masks = Masks({"RLBOX_SECRETS": "A,B,C", "A": "abcd", "B": "abcdef", "C": "x"})
    assert masks.text("abcdef abcd x") == "*** *** x"
