"""Background loops, one file each. Each pass is bounded, and all replicas may run it concurrently."""
