"""isorate's parent process: plans the load, runs the session, reports. Imports no torch."""
