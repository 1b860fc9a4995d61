"""The engine process: owns the model and the device; imports nothing of the harness but `harness.common`."""
