"""The EAGLE-3 runbook: one module per step, each with a `doc` that an operator could follow by hand."""
