"""The verdict: one declared check a concept."""
