"""Specs: what the user wrote, checked and frozen. Nothing here touches a process, a socket or a clock."""
