"""The command line: its flags, and the commands that start no process."""
