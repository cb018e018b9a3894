"""Containers and images as an engine knows them; its socket, docker-py, SSH; GPUs by its ways; limits."""
