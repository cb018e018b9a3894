"""Keep secret values out of everything that is written for people to read or to send, and tell text that holds one."""

from __future__ import annotations

import base64
import functools
import html
import json
import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

from rlbox.secrets.mask_stream import MASK, MIN_SECRET_LENGTH, MaskPatterns, MaskStream
from rlbox.secrets.url_credentials import mask_url_and_header_credentials

SECRETS_VARIABLE = "RLBOX_SECRETS"
"""Environment variable that names, comma separated, the variables that were passed on as secrets."""

_SECRET_NAME = re.compile(r"SECRET|TOKEN(?!IZER)|KEY|PASSW|CREDENTIAL", re.IGNORECASE)
_PLAIN = re.compile(r"[/.~].*|\d+|\S*\s.*", re.DOTALL)  # a path, a number, a sentence
_LIKELY = 16  # characters from which on the value of an undeclared variable is one even without a digit
_POSSIBLE = 8
_SHORTEST_BASE64 = 6
_SHORTEST_LINE = 8
# Tokens that tell what they are by how they begin; what follows `wandb login` has the form of a commit.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|sk-[A-Za-z0-9_-]{20,}"
    r"|A(?:KIA|SIA|BIA|CCA|3T[A-Z0-9])[0-9A-Z]{16}|(?:rpa|dckr_pat|nvapi|gsk|r8|npm|api_org)[-_][A-Za-z0-9_-]{20,}"
    r"|wandb login (?:\S+ )*[0-9a-f]{40})\b"
)
# Tokens of other services whose random part is too short to be told from a name, and private keys.
_SERVICE_TOKEN = re.compile(
    r"\b(?:(?:sk|pk|rk)_(?:test_|live_|prod_)?|(?:live|test)_|xox[a-z]{1,6}-|xapp-|gl[a-z]{2,6}-|gls?[ac]_|glagent-"
    r"|FLW[A-Z]+_TEST-|pscale_\w+_|sm_\w{3}_|sc_|sl\.|su(?=[A-Za-z0-9]{12}\b)|s\.(?=[a-z0-9]{24}\b)|sntrys_"
    r"|squ_|sqp_|SG\.|tfp_|fio-u-|fm[12]\w?_|HRKU-|GR1348941|pplx-|pypi-|AKCp|AIza|EAAA|ABSK|AGE-SECRET-|dapi|p8e-"
    r"|bedrock-|ntn_|sq0[a-z]{3}-|A3-(?=[A-Z0-9]{6}-)|ey(?=[A-Za-z0-9]+\.ey))(?=[^\s'\"]*[A-Z0-9])[^\s'\"<>;,]{6,}"
    r"|\b\d{5,16}:[A-Za-z0-9_-]{30,}|\b[a-f0-9]{8}:[a-f0-9]{8}\b"
    r"|\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b"
    r"|-----BEGIN[^-]*PRIVATE KEY[\s\S]*?(?:KEY(?: BLOCK)?-----(?![\s\S]*KEY-----)|\Z)"
)
_NAMED_VALUE = re.compile(
    r"(?i)((?:key(?!word)|token(?!iz)|secret|passw|pwd\b|login|credential)[\w-]*[\"'`\s]{0,4}(?:value)?[:=>?,|]"
    r"[\"'`\s:=>|]{0,8})([^\s\"'`<>,;]{6,})"
)
_ASSIGNED_VALUE = re.compile(r"(\w[\"'`\s.-]{0,6}(?:=>|>|\|\||\?=|:{1,3}=?|=|,)[\"'`\s=]{0,6})([A-Za-z0-9=_~-]{16,})")
_SERVICE_VALUE = re.compile(
    r"(?i)((?:adobe|airtable|algolia|asana|beamer|bitbucket|bittrex|clojars|codecov|coinbase|confluent|contentful|datadog"
    r"|discord|drone|dropbox|etsy|facebook|fastly|finicity|finnhub|flickr|freshbooks|gitter|gocardless|hubspot|kraken"
    r"|kucoin|launchdarkly|linked[_-]?in|mailchimp|mailgun|mapbox|mattermost|messagebird|netlify|new-?relic|nytimes|okta"
    r"|plaid|rapidapi|sendbird|sentry|snyk|squarespace|telegram|travis|twitch|twitter|yandex|zendesk|auth|access|api|creds)"
    r"[\w.-]{0,20}[\"'`\s]{0,3}(?:=>|>|\|\||\?=|:{1,3}=?|=|,)[\"'`\s=]{0,5})([a-z0-9=_+/-]*\d[a-z0-9=_+/-]*)"
)
"""After the name of a service any value with a digit: some tokens have ten small letters."""
_PASSWORD_OF = (
    re.compile(r"""(?is)(\bcurl\b.{0,200}?\s(?:-u|--user)[\s=]*["']?[^\s:"']+["']?:["']?)([^\s"']+)"""),
    re.compile(r"""(?i)(password["']?\s*value\s*=\s*["'])([^"']+)"""),
    re.compile(r"""(?is)(?=.*kind:\s*["']?secret)(:\s*(?:[|>]\s*)?["']*)([a-z0-9+/]{8,}={0,3})"""),
)
_WORD = re.compile(r"[A-Za-z0-9+=_~$%.*-]{14,}")
_RUN = re.compile(r"[A-Za-z0-9]{14,}")


def mask_tokens_and_random_text(text: str) -> str:
    """Replace everything that looks like a token of any service: characters that alternate as in random text.

    Meant for what strangers get to read, where a hidden identifier costs less than a token that is shown.
    """
    text = _SERVICE_TOKEN.sub(MASK, _TOKEN.sub(MASK, text))
    for pattern in (*_PASSWORD_OF, _NAMED_VALUE):
        text = pattern.sub(rf"\1{MASK}", text)
    text = _SERVICE_VALUE.sub(lambda found: found[1] + (MASK if len(found[2]) >= 10 else found[2]), text)
    text = _ASSIGNED_VALUE.sub(lambda found: found[1] + (MASK if _is_random(found[2], 0.12) else found[2]), text)
    return _WORD.sub(lambda found: _mask_word(found[0]), text)


def _mask_word(word: str) -> str:
    """Mask a word of which a part is random; a token may have several parts. The name before `=` stays."""
    name, equals, value = word.partition("=")
    if not equals or _has_random_part(name):
        name, equals, value = "", "", word
    return f"{name}{equals}{MASK if _has_random_part(value) else value}"


def _has_random_part(word: str) -> bool:
    return (
        MASK in word
        or ("." not in word and _is_random(word, 0.2))
        or any(_is_random(run, 0.15) for run in _RUN.findall(word))
    )


def _is_random(word: str, least_changes: float) -> bool:
    """Whether letters and digits alternate, or upper and lower case; `least_changes` is a share of the characters.

    Between two random characters of base 36 the first happens in 40 % of all cases, of base 64 in 27 %, in
    `Qwen3-30B-A3B-Instruct-2507` in 15 %; the second in 60 %, and in names of classes in 35 %.
    """
    digits = sum(char.isdigit() for char in word)
    letters = sum(char.isalpha() for char in word)
    pairs = [(one, two) for one, two in pairwise(word) if one.isalnum() and two.isalnum()]
    changes = sum(one.isdigit() != two.isdigit() for one, two in pairs)
    case = sum((one.isdigit(), one.isupper()) != (two.isdigit(), two.isupper()) for one, two in pairs)
    if digits == len(word) >= 15:
        return True
    return digits >= 2 and letters >= 2 and (changes >= least_changes * len(word) or case >= 0.42 * len(word))


class SecretMasker:
    """Replaces the values of secrets, however they are written, and credentials in URLs and headers.

    Secrets are the variables that `RLBOX_SECRETS` names, and those whose names sound like one and whose values do too.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        named = {name.strip() for name in environment.get(SECRETS_VARIABLE, "").split(",")}
        self._named = named - {""}
        values = {environment.get(name, "") for name in self._named}
        values |= {value for name, value in environment.items() if self._hides(name) and _looks_secret(value)}
        self.values: tuple[str, ...] = tuple(sorted({value for value in values if len(value) >= MIN_SECRET_LENGTH}))
        """The secrets that are masked."""

    @functools.cached_property
    def _patterns(self) -> MaskPatterns:
        texts = {text for value in self.values for text in _pieces(value)}
        encodings = (_escapes, _url_forms, _base64_forms, _number_forms)
        return MaskPatterns({*texts, *(form for text in texts for encode in encodings for form in encode(text))})

    def create_mask_stream_keeping_url_credentials(self) -> MaskStream:
        """Return what replaces every secret in a log by `***`, whatever it is cut into; credentials are left alone."""
        return MaskStream(self._patterns if self.values else None)

    def mask_text(self, text: str) -> str:
        if self.values:
            lone = "surrogateescape" if _whole(text) else "surrogatepass"
            stream, data = self.create_mask_stream_keeping_url_credentials(), text.encode("utf-8", lone)
            text = (stream.feed(data) + stream.close()).decode("utf-8", lone)
        return mask_url_and_header_credentials(text)

    def mask_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, Mapping):
            return {self.mask_json(key): self.mask_json(item) for key, item in value.items()}
        return [self.mask_json(item) for item in value] if isinstance(value, (list, tuple)) else value

    def mask_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {
            name: MASK if value and self._hides(name) else self.mask_text(value)
            for name, value in sorted(environment.items())
        }

    def _hides(self, name: str) -> bool:
        return name in self._named or name_looks_like_secret(name)


def name_looks_like_secret(name: str) -> bool:
    return name != SECRETS_VARIABLE and bool(_SECRET_NAME.search(name))


def _looks_secret(value: str) -> bool:
    if len(value) < _POSSIBLE or _PLAIN.fullmatch(value):
        return False
    return len(value) >= _LIKELY or any(character.isdigit() for character in value)


def _whole(text: str) -> bool:
    """Whether a text can be written as bytes: JSON may hold halves of characters."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def is_literal_secret(name: str, value: str) -> bool:
    """Whether the value of a variable looks like a secret; one that refers to another variable is none."""
    value = value.strip("\"'")
    return "$" not in value and (bool(_TOKEN.search(value)) or bool(SecretMasker({name: value}).values))


def _pieces(value: str) -> set[str]:
    """Return a secret, and of one of several lines each long one by itself too."""
    lines = [line.strip() for line in value.splitlines()]
    return {value, value.strip(), *(line for line in lines if len(line) >= _SHORTEST_LINE)} - {""}


def _escapes(text: str) -> set[str]:
    return {
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(text)[1:-1].replace("/", "\\/"),
        json.dumps(json.dumps(text)[1:-1])[1:-1],  # JSON in JSON
        repr(text)[1:-1],
        ascii(text)[1:-1],
        repr(text.encode("utf-8", "surrogateescape"))[2:-1],
        html.escape(text),
        html.escape(text, quote=False),
        html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
        shlex.quote(text).removeprefix("'").removesuffix("'"),
    }


def _url_forms(text: str) -> set[str]:
    data = text.encode("utf-8", "surrogateescape")
    forms = {quote(data, safe=""), quote(data), quote_plus(data), quote(data, safe=":/?#[]@!$&'()*+,;=")}
    return forms | {re.sub(r"%[0-9A-F]{2}", lambda match: match.group().lower(), form) for form in forms}


def _base64_forms(text: str) -> set[str]:
    """Return what base64 makes of `text` wherever it stands in what is encoded (as the password of `user:password`).

    A piece of three bytes becomes four characters; what stands before shifts it by nought to two bytes. The characters
    that depend on the neighbours are left out.
    """
    data = text.encode("utf-8", "surrogateescape")
    found = set[str]()
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + data).decode("ascii")
        first = (0, 2, 3)[shift]
        last = (shift + len(data)) * 8 // 6  # characters that hold nothing but bytes of ours
        form = coded[first:last]
        if len(form) >= _SHORTEST_BASE64:
            found |= {form, form.replace("+", "-").replace("/", "_")}
    return found


def _number_forms(text: str) -> set[str]:
    """Return its bytes in hexadecimal and as a list of decimal numbers, and its characters as JSON may escape them.

    `remove_escapes_quotes_and_whitespace` takes out blanks and backslashes first, so `\\x68\\x66` is found as `x68x66`.
    """
    data = text.encode("utf-8", "surrogateescape")
    hex_forms = {separator.join(f"{byte:02x}" for byte in data) for separator in ("", ":", "-", ",0x", "0x", "x", "%")}
    escaped = "".join(f"u{unit:04x}" for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"))
    upper = {form.upper().replace("X", "x") for form in hex_forms}
    return {*hex_forms, *upper, ",".join(map(str, data)), escaped}
