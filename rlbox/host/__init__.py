"""Is this host fit, before a container is started; which GPUs."""
