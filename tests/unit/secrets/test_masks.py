"""Secrets stay out of what people read."""

from __future__ import annotations

import base64
import html
import json
import shlex
import textwrap
from urllib.parse import quote, quote_plus

import pytest
from fakes import load_cases
from hypothesis import assume, given
from hypothesis import strategies as st

from rlbox.secrets.mask_stream import remove_escapes_quotes_and_whitespace
from rlbox.secrets.masks import SecretMasker, mask_tokens_and_random_text

CASES = load_cases("secrets", "test_masks")
ENVIRONMENT = {
    "RLBOX_SECRETS": "WANDB, EMPTY,ABSENT",
    "WANDB": "planted",
    "EMPTY": "",
    "HF_TOKEN": "hf-value",
    "TOKENIZERS_PARALLELISM": "false",
    "URL": "http://planted@host",
}


def test_environment() -> None:
    assert SecretMasker(ENVIRONMENT).mask_environment(ENVIRONMENT) == {
        "EMPTY": "",
        "HF_TOKEN": "***",
        "RLBOX_SECRETS": "WANDB, EMPTY,ABSENT",
        "TOKENIZERS_PARALLELISM": "false",
        "URL": "http://***@host",
        "WANDB": "***",
    }


def test_tree() -> None:
    assert SecretMasker(ENVIRONMENT).mask_json({"a": ["x planted", 1, None, ("planted",)]}) == {
        "a": ["x ***", 1, None, ["***"]]
    }


def test_longer_secrets_first_and_short_ones_never() -> None:
    masks = SecretMasker({"RLBOX_SECRETS": "A,B,C", "A": "abcd", "B": "abcdef", "C": "x"})
    assert masks.mask_text("abcdef abcd x") == "*** *** x"


SECRET = "q+7/planted=Z x\"'\u00fc"


BYTES = SECRET.encode()
FOLDED = base64.b64encode(b"user:" + BYTES + b"\n and more").decode()


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        BYTES.hex(),
        BYTES.hex().upper(),
        BYTES.hex(":"),
        BYTES.hex("-").upper(),
        BYTES.hex(" ", 2),
        "\n".join(textwrap.wrap(BYTES.hex(), 16)),
        ", ".join(f"0x{byte:02x}" for byte in BYTES),
        "".join(f"\\x{byte:02x}" for byte in BYTES),
        "".join(f"%{byte:02X}" for byte in BYTES),
        "".join(f"\\u{ord(letter):04x}" for letter in SECRET),
        str(list(BYTES)),
        "\r\n   ".join(textwrap.wrap(SECRET, 4)),
        f"{SECRET[:7]}\\\n{SECRET[7:]}",
        f"({SECRET[:7]!r}\n {SECRET[7:]!r})",
        f"{SECRET[:7]}\x1b[1;31m{SECRET[7:9]}\x1b[0m\x1b[2K\x1b[10;2H{SECRET[9:]}",
        json.dumps(f"{SECRET[:7]}\x1b[31m{SECRET[7:]}"),
        base64.b64encode(BYTES.ljust(90, b"=")).decode(),
        base64.encodebytes(BYTES).decode(),
        repr(base64.encodebytes(BYTES * 4))[2:-1],
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower().replace("z", "Z"),
        quote_plus(SECRET),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        json.dumps(json.dumps(SECRET)),
        repr(SECRET),
        ascii(SECRET),
        repr(SECRET.encode()),
        html.escape(SECRET),
        shlex.quote(SECRET),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        *(base64.b64encode(b"u" * before + b":" + SECRET.encode() + b"tail").decode() for before in range(4)),
    ],
)
def test_however_it_is_written(written: str) -> None:
    masked = SecretMasker({"RLBOX_SECRETS": "A", "A": SECRET}).mask_text(f"said {written} so")
    assert "***" in masked
    rest = masked.replace("***", "").removeprefix("said ").removesuffix(" so")
    assert len(rest) <= 16 or written.count("\n") or "PT09" in rest, masked  # of base64 the neighbours' characters stay
    assert "planted" not in masked


@pytest.mark.parametrize("width", range(1, 77, 5))
def test_base64_folded_at_any_width(width: int) -> None:
    masked = SecretMasker({"RLBOX_SECRETS": "A", "A": SECRET}).mask_text("\n".join(textwrap.wrap(FOLDED, width)))
    shown = "".join(masked.split()).replace("***", "\0")
    core = base64.b64encode(BYTES).decode()[4:20]
    assert "\0" in shown
    assert not any(core[n : n + 4] in shown for n in range(len(core) - 4)), masked


def test_keys_of_a_tree_too() -> None:
    masks = SecretMasker({"RLBOX_SECRETS": "A", "A": SECRET})
    assert masks.mask_json({f"/data/{SECRET}/x": {"of": SECRET}}) == {"/data/***/x": {"of": "***"}}


def test_a_secret_of_several_lines() -> None:
    key = "-----BEGIN KEY-----\nplantedplanted1\nplantedplanted2\nab\n-----END KEY-----\n"
    masks = SecretMasker({"RLBOX_SECRETS": "A", "A": key})
    assert masks.mask_text(f"all {key} one plantedplanted2 last ab") == "all ***\n one *** last ab"


@pytest.mark.parametrize(("name", "value", "hidden"), CASES["what_nobody_declared_and_what_sounds_like_it"])
def test_what_nobody_declared_and_what_sounds_like_it(name: str, value: str, hidden: bool) -> None:
    assert (SecretMasker({name: value}).mask_text(f"x {value} y") == "x *** y") is hidden


@given(st.text(min_size=4, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_no_value_is_left(value: str, before: str, after: str) -> None:
    assume(
        value not in "***" and len(remove_escapes_quotes_and_whitespace(value.encode("utf-8", "surrogatepass"))) >= 4
    )
    assume(not before.endswith(("\\", "\x1b")))  # there the first characters of a value are an escape's
    masked = SecretMasker({"RLBOX_SECRETS": "A", "A": value}).mask_text(before + value + after)
    assert value not in masked.replace("***", "\0")


TOKENS = {
    "hugging face": "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0",
    "docker hub": "dckr_pat_" + "Zk3-x9Qw2_Lm8Nv5Rt1Yb7Cd4E",
    "runpod": "rpa_" + "7GH2KJ9QWE4RTY6UIO1PAS3DFG5ZXC8VBN0M",
    "github": "ghp_" + "1a2B3c4D5e6F7g8H9i0J1k2L3m4N5o6P7q8R",
    "gitlab": "glpat-" + "3ZpYhdrE_XOqKrrssEzd",
    "slack": "xoxb-" + "1213859276-0725787776",
    "aws": "AKIA" + "QWERTYUIOP234567",
    "anthropic": "sk-ant-api03-" + "ptOPPi5J96UWkhrg_GFRUVZN7RvdsGCr",
    "google": "AIza" + "yjqKdEuwF6nazUvImkMDWMrMrMpMmA4ZmdY",
    "telegram": "58570123:" + "Akigktwpowb-v-jefx_7w43wf30dym9scuo",
    "sidekiq": "2866b2b1:" + "b6048263",
    "stripe": "sk_test_" + "pdhDL0ABJP",
    "json web token": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0.dBjftJeZ4CVP",
    "commit-like key": "fcf01f3db4ec8e1b35bc801fdb0bdc13271b2",
    "uuid": "753e770b-b152-6918-" + "0754-b5fea23c1b36",
    "base 36": "bzu1prmek2jq37kii2xtzphntegozu5g",
    "dotted": "patWTiZVyurkfHp6Y." + "0a20873f805a6764c913a7e62fca5273e829f8b2",
}


@pytest.mark.parametrize("kind", TOKENS)
def test_token_of_any_service_is_masked_where_strangers_read(kind: str) -> None:
    token = TOKENS[kind]
    masked = mask_tokens_and_random_text(f"ValueError: bad value {token} in the request")
    assert not any(token[at : at + 8] in masked for at in range(len(token) - 7)), masked


@pytest.mark.parametrize(("text", "secret"), CASES["values_of_services_and_passwords"])
def test_value_of_service_and_password_are_masked(text: str, secret: str) -> None:
    assert secret not in mask_tokens_and_random_text(text)


@pytest.mark.parametrize("text", CASES["words_of_logs_are_not_taken_for_tokens"])
def test_words_of_logs_are_not_taken_for_tokens(text: str) -> None:
    assert mask_tokens_and_random_text(text) == text


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["=" * 300, "-_" * 200, "abcd_efgh-" * 60, "***" + "_a-b=c~" * 60])
def test_rules_and_long_words_are_read_once(text: str) -> None:
    """A pattern that tried every way to part them did not end within a minute."""
    assert mask_tokens_and_random_text(f"{text}!").endswith("!")
