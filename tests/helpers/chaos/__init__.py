"""Damage done on purpose and counted: `scripts/chaos NAME`."""
