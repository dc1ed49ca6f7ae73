"""Whether an attempt's output may be committed, and what it replaces."""
