"""Deploys and rollouts: execution of a plan, progress, swap and rollback."""
