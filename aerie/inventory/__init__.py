"""The hosts of inventory/hosts.yml, as Ansible reads them: groups, variables, patterns. The only source of hosts."""

from .failed import record_failed
from .host import Gpus, Host, Waiver, require_local
from .locks import lock_of
from .own import lock_file, record_lock
from .pattern import folder, host, hosts, select

__all__ = [
    "Gpus",
    "Host",
    "Waiver",
    "folder",
    "host",
    "hosts",
    "lock_file",
    "lock_of",
    "record_failed",
    "record_lock",
    "require_local",
    "select",
]
