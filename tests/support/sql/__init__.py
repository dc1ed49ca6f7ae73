"""SELECTs for the SQL guards: hostile, harmless and generated ones."""
