"""The scheduler: triggers the job of a cron source once per tick, through the Dispatcher's API."""
