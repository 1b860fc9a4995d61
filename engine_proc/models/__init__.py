"""Model families and their weights, from safetensors or GGUF."""
