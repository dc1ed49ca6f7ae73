"""Bodies about proven data: certificates of partitions, manifests, the delivery log."""
