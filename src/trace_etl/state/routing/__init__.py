"""Routing of events to tasks: outbox, events, triggers, webhooks, cursors and reconciliation."""
