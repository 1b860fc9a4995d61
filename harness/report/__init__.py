"""What a person or a script reads after a run."""
