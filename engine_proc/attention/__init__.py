"""The paged KV cache, and attention over it: plain, compiled, dense."""
