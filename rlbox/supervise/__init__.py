"""Carry out a run: stages, services, Ray, watch, end of all."""
