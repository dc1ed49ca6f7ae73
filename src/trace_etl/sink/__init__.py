"""The sink process: writes buffered batches to Postgres data and drops retired tables."""

import os

# Arrow reads it when it is imported. Its other allocators take 1 GiB of address space with the first
# buffer, and the limit on the memory of a decoder would count that.
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
