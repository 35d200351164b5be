"""What aerie's roles hold true on a host that matches, as operations of pyinfra: a run of it changes nothing."""

import json
import os

from pyinfra.operations import apt, files, server, systemd

lock = json.loads(os.environ["PEER_LOCK"])

apt.packages(name="tools", packages=list(lock["base"]["packages"]))
for path in (
    "/etc/security/limits.d/90-aerie.conf",
    "/etc/systemd/system.conf.d/90-aerie.conf",
    "/etc/sysctl.d/90-aerie.conf",
    "/etc/apt/apt.conf.d/52aerie-unattended",
    "/etc/needrestart/conf.d/90-aerie.conf",
    "/etc/default/grub.d/90-aerie.cfg",
):
    files.file(name=path, path=path, present=True, mode="644", user="root")
for key, value in lock["base"]["sysctl"].items():
    server.sysctl(name=key, key=key, value=value, persist=False)
apt.packages(name="driver", packages=["nvidia-open"], update=False)
apt.packages(name="toolkit", packages=[f"{one['name']}={one['version']}" for one in lock["cuda"]["packages"]])
files.directory(name="folder of weights", path=lock["storage"]["path"], present=True)
server.user(name="service account", user=lock["engine"]["user"], present=True)
systemd.service(name="persistence", service="nvidia-persistenced.service", running=True, enabled=True)
