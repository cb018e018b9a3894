"""Offers, requests and the account at vast.ai."""
