"""The `smoke` job: a small but real three-stage RL run on hold'em decisions, on two CPU cores.

Stages, in order: `smoke.train` (train-only), `smoke.rollout` (rollout-only), `smoke.loop` (smoke). `smoke.reward` is
the reward server of the last two; the policy is served by vLLM's OpenAI server. Run each as `python -m smoke.NAME` with
the folder above this one as working directory or in `PYTHONPATH`.
"""
