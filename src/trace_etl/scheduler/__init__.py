"""Cron sources: every tick of a schedule triggers its job, once, through the Dispatcher's API."""
