"""From stamps to figures: records, metrics, the ledger of TTFT, samples and what they support."""
