"""Run code that a model wrote, behind walls, and say how it did; protocol of SandboxFusion's `/run_code`."""
