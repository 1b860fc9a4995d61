"""Closed forms and exact recursions that a measurement can be held against. Pure functions; no clock, no process."""
