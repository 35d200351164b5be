"""The watchdog of a served model: tells hangs apart, keeps evidence, recovers by the least step, and never loops.

Runs on the host, beside the service: standard library, and pynvml where the engine's environment has it.
"""
