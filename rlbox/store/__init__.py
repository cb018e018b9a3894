"""Locked files on this disk: fetch, verify, keep, export."""
