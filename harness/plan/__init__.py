"""Everything that decides what is sent when, before t0."""
