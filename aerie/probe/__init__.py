"""What is sent to a host to read its snapshot: standard library and pynvml only, Python 3.9 and later.

It changes nothing and needs no files on the host: aerie.remote sends it on stdin to `python3 -I -S -` (see bundle.py).
Every reading is guarded on its own; what cannot be read becomes {"unknown": why} in the document of aerie.snapshot.
"""
