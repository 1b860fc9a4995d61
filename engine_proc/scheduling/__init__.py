"""Who computes what in the next step, and which KV blocks are whose. No torch."""
