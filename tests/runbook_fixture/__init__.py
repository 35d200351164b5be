"""A quick runbook for the tests of the engine: real steps, real processes, a few hundredths of a second each."""
