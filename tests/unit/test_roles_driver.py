"""What the roles driver, interconnect and cuda decide without a host: names of packages, ACS bits, versions."""

from typing import Any

import pytest
import yaml

from aerie.lock import driver_packages
from aerie.paths import repository

ROLES = repository() / "roles"


def role_variables(role: str, **given: Any) -> Any:
    """Ansible's own view of a role's vars with the given variables."""
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    raw = yaml.safe_load((ROLES / role / "vars/main.yml").read_text())
    trusted = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in raw.items()}
    templar = Templar(loader=DataLoader(), variables={**trusted, **given})
    return lambda name: templar.template(trust_as_template(f"{{{{ {name} }}}}"))


@pytest.mark.parametrize("flavour", ["open", "closed"])
@pytest.mark.parametrize("os_id", ["ubuntu", "debian"])
@pytest.mark.parametrize("version", ["580.105.08", "590.48.01", "595.58.03", "610.43.02"])
def test_role_and_library_name_the_same_packages(version: str, flavour: str, os_id: str) -> None:
    wanted = driver_packages(version, flavour, os_id)
    value = role_variables("driver", driver_version=version, driver_flavour=flavour)
    assert [one["name"] for one in value("driver_set")] == [*filter(None, [wanted.pinning]), *wanted.packages]
