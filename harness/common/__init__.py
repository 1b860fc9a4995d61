"""What all three processes agree on: clock, stamps, collector, messages, sockets, errors."""
