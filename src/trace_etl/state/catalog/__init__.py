"""DAGs, jobs, revisions, datasets, published names and users."""
