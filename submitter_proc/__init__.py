"""The submitter process: owns the arrival clock; imports nothing of the harness but `harness.common`."""
