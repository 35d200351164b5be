"""The hosts of inventory/hosts.yml, as Ansible reads them: groups, variables, patterns. The only source of hosts."""

from .failed import record_failed
from .host import Gpus, Host, Waiver, require_local
from .pattern import folder, host, hosts, select

__all__ = ["Gpus", "Host", "Waiver", "folder", "host", "hosts", "record_failed", "require_local", "select"]
