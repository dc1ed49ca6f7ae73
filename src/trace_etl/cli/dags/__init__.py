"""Commands for DAGs: check, plan, deploy, roll back, trigger, pause."""
