"""Probes that run inside the measured processes: they write what disturbed them into rings of the collector."""
