"""`isorate selftest`: sessions on the null engine whose right answers are known, and how far off they were."""
