"""The command line: its flags, and the commands that run no load."""
