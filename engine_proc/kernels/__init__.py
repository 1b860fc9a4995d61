"""Compiled loops of the model on a CPU, each with a plain twin, and how they come to be compiled."""
