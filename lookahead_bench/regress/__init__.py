"""The regression gate: two stored runs, what changed between them, and whether that is allowed."""
