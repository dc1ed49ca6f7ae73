"""Commands about DAGs: check, plan, deploy, roll back, trigger."""
