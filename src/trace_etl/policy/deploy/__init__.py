"""What a deploy does: its plan, generations, changes of columns, progress of the rollout."""
