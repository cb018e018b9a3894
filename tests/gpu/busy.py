"""A process of somebody else's that keeps a GPU busy: `busy.py INDEX`; two minutes at most."""

import sys
import time

import torch

a = torch.randn(8192, 8192, device=f"cuda:{sys.argv[1]}", dtype=torch.bfloat16)
until = time.time() + 120
while time.time() < until:
    for _ in range(50):
        torch.mm(a, a)
    torch.cuda.synchronize()
