"""The outbox, events, triggers, webhooks, cursors and their reconciliation."""
