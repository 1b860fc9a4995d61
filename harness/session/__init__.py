"""A session while it lives: its processes, the wire back, and what becomes of it when something ends early."""
