"""What the job `xdan` adds to OpenRLHF: prompts (`data`), the check of the cluster (`nodes`), rewards (`reward`).

Older scripts start `openrlhf.models.remote_rm.math_verifier`, which no OpenRLHF release has: it belongs to a private
fork. `xdan.reward` takes the same options and gives the same reward, without that fork.
"""
