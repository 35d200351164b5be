"""Reading what a place has: the manifest of a hub's repository, a web server's folder, a bucket, or a folder."""

from .read import Say, read

__all__ = ["Say", "read"]
