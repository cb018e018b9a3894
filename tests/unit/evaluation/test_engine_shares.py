"""Which GPUs each of several engines gets, and what counts as the same answer of two engines."""

from __future__ import annotations

from typing import Any

import pytest

from rlbox.evaluation.gpu_split import GpuState
from rlbox.evaluation.serving.proof import differs, probe_request, probed_of, proof_key
from rlbox.evaluation.serving.shares import share_gpus

GIB = 1 << 30


def gpus(*used: int) -> list[GpuState]:
    return [GpuState(index=at, name="GPU", used=of * GIB, total=80 * GIB) for at, of in enumerate(used)]


def seen(shares: list[dict[str, str]]) -> list[str]:
    return [env["CUDA_VISIBLE_DEVICES"] for env in shares]


def test_each_engine_has_gpus_of_its_own() -> None:
    assert seen(share_gpus(2, gpus(0, 0, 0, 0), None, {})) == ["0", "1"]
    assert seen(share_gpus(2, gpus(0, 0, 0, 0), None, {"tensor_parallel_size": 2})) == ["0,1", "2,3"]
    assert seen(share_gpus(2, gpus(0, 0, 0, 0), None, {"tensor-parallel-size": "2"})) == ["0,1", "2,3"]
    assert {env["CUDA_DEVICE_ORDER"] for env in share_gpus(2, gpus(0, 0), None, {})} == {"PCI_BUS_ID"}


def test_as_many_as_free_gpus_allow() -> None:
    assert seen(share_gpus(0, gpus(70, 0, 0, 60, 0), None, {})) == ["1", "2", "4"]
    assert seen(share_gpus(0, gpus(0, 0, 0, 60, 0), None, {"tensor_parallel_size": 2})) == ["0,1", "2,4"]


def test_no_other_than_those_that_are_shown() -> None:
    assert seen(share_gpus(0, gpus(0, 70, 0, 0), "3, 1,0", {})) == ["3", "0"]
    assert seen(share_gpus(0, gpus(0, 0), "GPU-4f,GPU-5e", {})) == ["GPU-4f", "GPU-5e"]


def test_one_engine_is_started_as_ever_and_without_gpus_none_is_chosen() -> None:
    assert share_gpus(1, gpus(70, 0), "1", {}) == [{}]
    assert share_gpus(0, [], None, {}) == [{}]
    assert share_gpus(2, [], None, {}) == [{}, {}]


def test_where_none_is_free_one_engine_says_itself_what_it_lacks() -> None:
    assert share_gpus(0, gpus(70, 70), None, {}) == [{}]
    assert share_gpus(0, gpus(0, 0, 0), None, {"tensor_parallel_size": 4}) == [{}]


@pytest.mark.parametrize(
    ("wanted", "settings", "told"),
    [
        (3, {}, r"3 servers need 3 free GPUs, there are 2 \(held: 1\)"),
        (2, {"tensor_parallel_size": 2}, r"2 servers need 4 free GPUs, there are 2 \(held: 1\)"),
    ],
)
def test_too_few_free_gpus_are_told(wanted: int, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        share_gpus(wanted, gpus(0, 70, 0), None, settings)


def answer(value: float, token: str = "a") -> dict[str, Any]:
    told = {"tokens": [token], "token_logprobs": [value], "top_logprobs": [{token: value}], "text_offset": [4]}
    prompt = [None, {"5": {"logprob": value, "rank": 1, "decoded_token": "b"}}]
    return {"id": "cmpl-1", "choices": [{"text": token, "logprobs": told, "prompt_logprobs": prompt}]}


def test_what_two_engines_say_is_equal_to_the_last_digit_or_not() -> None:
    one = [probed_of(answer(-1.25))]
    assert differs(one, [probed_of({**answer(-1.25), "id": "cmpl-2"})]) == ""
    assert differs(one, [probed_of(answer(-1.2500001))]) == "log-probabilities differ by up to 1e-07"
    assert differs(one, []) == "other tokens follow"
    assert differs(one, [probed_of(answer(-1.25, "b"))]) == "other tokens follow"


@pytest.mark.parametrize("broken", [{}, {"choices": []}, {"choices": [{"text": "a", "logprobs": None}]}, []])
def test_an_engine_without_log_probabilities_proves_nothing(broken: Any) -> None:
    with pytest.raises(ValueError, match="it tells no log-probabilities"):
        probed_of(broken)


def test_prompts_are_probed_with_and_without_the_cache_of_prefixes() -> None:
    assert "prompt_logprobs" not in probe_request("judged", "a", whole=False)
    assert probe_request("judged", "a", whole=True)["prompt_logprobs"] == 1


def test_a_proof_is_of_an_engine_a_form_and_a_machine() -> None:
    one = proof_key({"version": "1"}, {"config": "a"}, {"gpus": ["H100"]})
    assert one == proof_key({"version": "1"}, {"config": "a"}, {"gpus": ["H100"]})
    others = [
        proof_key({"version": "2"}, {"config": "a"}, {"gpus": ["H100"]}),
        proof_key({"version": "1"}, {"config": "b"}, {"gpus": ["H100"]}),
        proof_key({"version": "1"}, {"config": "a"}, {"gpus": ["A800"]}),
    ]
    assert len({one, *others}) == 4
