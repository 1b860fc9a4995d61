"""What the parent reads of the host, outside the measured processes: threads, CPUs, control groups, idle states."""
