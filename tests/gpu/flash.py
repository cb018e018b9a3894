"""A compiled flash-attn against torch's own attention, on a GPU: `flash.py [--repeat 3]`; needs torch and the wheel.

Forward and backward in bf16, for each case against plain products in float32: the relative error (of Euclidean
norms) of the output and of each gradient, beside that of torch's own kernels in bf16. Prints one line of JSON, and
exits 1 when flash-attn is more than twice as far off as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import flash_attn
import torch
from torch.nn.functional import scaled_dot_product_attention

TIMES_TORCH = 2.0
ROUNDING = 2**-8  # of bf16, about the size of one: an error below it is none


@dataclass(frozen=True, kw_only=True)
class Case:
    """Shapes of one comparison: batch, queries, keys, heads of queries and of keys, head size."""

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    size: int
    causal: bool

    def label(self) -> str:
        """The case in one word."""
        heads = f"{self.heads}/{self.kv_heads}"
        return f"b{self.batch} q{self.queries} k{self.keys} h{heads} d{self.size}{' causal' if self.causal else ''}"


def cases() -> Iterator[Case]:
    """Yield full and odd lengths, shared keys, both masks, both head sizes."""
    for size in (64, 128):
        for causal in (False, True):
            yield Case(batch=2, queries=2048, keys=2048, heads=16, kv_heads=16, size=size, causal=causal)
            yield Case(batch=2, queries=1111, keys=1111, heads=28, kv_heads=4, size=size, causal=causal)
            yield Case(batch=1, queries=4096, keys=4096, heads=8, kv_heads=2, size=size, causal=causal)
        yield Case(batch=4, queries=1, keys=3001, heads=16, kv_heads=2, size=size, causal=False)


def by_flash(q: Any, k: Any, v: Any, case: Case) -> Any:
    """Return attention by the wheel; tensors are (batch, length, heads, size)."""
    return flash_attn.flash_attn_func(q, k, v, causal=case.causal)


def by_torch(q: Any, k: Any, v: Any, case: Case) -> Any:
    """Return attention by torch, in the dtype of its tensors."""
    shared = case.heads // case.kv_heads
    q, k, v = (one.transpose(1, 2) for one in (q, k.repeat_interleave(shared, 2), v.repeat_interleave(shared, 2)))
    return scaled_dot_product_attention(q, k, v, is_causal=case.causal).transpose(1, 2)


def by_hand(q: Any, k: Any, v: Any, case: Case) -> Any:
    """Return attention in plain products, in the dtype of its tensors."""
    shared = case.heads // case.kv_heads
    k, v = k.repeat_interleave(shared, 2), v.repeat_interleave(shared, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(case.size)
    if case.causal:
        seen = torch.ones(case.queries, case.keys, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def both_ways(attend: Callable[..., Any], given: tuple[Any, ...], case: Case, dtype: Any) -> list[Any]:
    """Return the output and the gradients of q, k and v in float32."""
    q, k, v, upstream = (one.to(dtype) for one in given)
    q, k, v = (one.detach().clone().requires_grad_() for one in (q, k, v))
    out = attend(q, k, v, case)
    out.backward(upstream)
    return [one.detach().float() for one in (out, q.grad, k.grad, v.grad)]


def errors(found: list[Any], right: list[Any]) -> dict[str, float]:
    """Return the relative error of the output and of each gradient; NaN is one, too."""
    names = ("out", "dq", "dk", "dv")
    return {
        name: round(float((one - two).norm() / two.norm()), 6)
        for name, one, two in zip(names, found, right, strict=True)
    }


def milliseconds(attend: Callable[..., Any], given: tuple[Any, ...], case: Case) -> float:
    """Return the mean time of a forward and backward in ms."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for count in range(13):
        if count == 3:
            begin.record()
        both_ways(attend, given, case, torch.bfloat16)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 10


def compare(case: Case, seed: int) -> dict[str, Any]:
    """Return what one case gave, and whether flash-attn is as exact as torch there."""
    made = torch.Generator("cuda").manual_seed(seed)
    q = (case.batch, case.queries, case.heads, case.size)
    k = (case.batch, case.keys, case.kv_heads, case.size)
    given = tuple(torch.randn(shape, generator=made, device="cuda").bfloat16().float() for shape in (q, k, k, q))
    right = both_ways(by_hand, given, case, torch.float32)
    flash = errors(both_ways(by_flash, given, case, torch.bfloat16), right)
    own = errors(both_ways(by_torch, given, case, torch.bfloat16), right)
    good = all(flash[name] <= TIMES_TORCH * max(own[name], ROUNDING) for name in flash)
    times = {"flash_ms": milliseconds(by_flash, given, case), "torch_ms": milliseconds(by_torch, given, case)}
    return {"case": case.label(), "seed": seed, "good": good, "flash": flash, "torch": own, **times}


def main() -> int:
    """Compare all cases and print what they gave; 1 when one is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="how often, each time with other numbers")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = [compare(case, seed) for seed in range(asked.repeat) for case in cases()]
    good = sum(row["good"] for row in rows)
    told = {
        "gpu": torch.cuda.get_device_name(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "flash_attn": flash_attn.__version__,
        "good": good,
        "comparisons": len(rows),
        "worst": max(error for row in rows for error in row["flash"].values()),
        "cases": rows,
    }
    print(json.dumps(told), flush=True)
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
