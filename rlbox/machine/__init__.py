"""This machine: processes, control groups, memory, ports, GPUs, proxies, CA, identity."""
