"""What the parent reads of the host, outside the measured processes: threads, CPUs and who gets which, control groups,
idle states, versions."""
