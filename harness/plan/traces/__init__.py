"""Traces: arrivals and lengths recorded elsewhere, read exactly, checked for their unit, made into a load."""
