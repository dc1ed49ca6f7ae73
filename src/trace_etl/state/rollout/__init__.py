"""Deploys and rollouts: plan execution, progress, swap, roll back."""
