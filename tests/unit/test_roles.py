"""What holds for every role: its files, its variables against the lock, and what no task may do."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerie import role_docs
from aerie.layers import LAYERS
from aerie.lock import Lock
from aerie.paths import repository

ROLES = repository() / "roles"
NAMES = role_docs.roles()
KEYWORDS = {
    "name", "when", "vars", "register", "loop", "loop_control", "changed_when", "failed_when", "check_mode", "become",
    "environment", "notify", "block", "rescue", "always", "until", "retries", "delay", "timeout", "delegate_to",
    "run_once", "listen", "async", "poll", "no_log", "become_user", "args", "tags",
}  # fmt: skip


def schema_of(layer: str) -> dict[str, Any]:
    """JSON Schema of a layer's table in the lock, references resolved; {} for a layer without one."""
    whole = Lock.model_json_schema()
    table = whole["properties"].get(layer, {})
    name = (table.get("$ref") or "").rpartition("/")[2]
    return whole["$defs"][name] if name else {}


def options(role: str) -> dict[str, Any]:
    main = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    return main["options"]


def defaults(role: str) -> dict[str, Any]:
    return yaml.safe_load((ROLES / role / "defaults/main.yml").read_text()) or {}


def tasks(role: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task of a role, also inside blocks and handlers, with where it is."""

    def walk(where: str, found: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        for task in found:
            yield f"{where}: {task.get('name')}", task
            for part in ("block", "rescue", "always"):
                yield from walk(where, task.get(part, []))

    for file in sorted([*(ROLES / role).glob("tasks/*.yml"), *(ROLES / role).glob("handlers/*.yml")]):
        yield from walk(str(file.relative_to(ROLES)), yaml.safe_load(file.read_text()) or [])


FIELDS = [
    (layer, field) for layer in LAYERS if layer in NAMES for field in schema_of(layer).get("properties", {})
]  # fmt: skip


def test_there_are_roles_to_test() -> None:
    assert {"base", "kernel", "python", "storage", "engine"} <= set(NAMES)
    assert [name for name in NAMES if name not in LAYERS] == []


@pytest.mark.parametrize("role", NAMES)
@pytest.mark.parametrize(
    "file", ["defaults/main.yml", *(f"tasks/{one}.yml" for one in ("main", "install", "configure", "verify"))]
)
def test_a_role_has_its_entry_points(role: str, file: str) -> None:
    assert (ROLES / role / file).is_file()


@pytest.mark.parametrize(("layer", "field"), FIELDS, ids=[f"{layer}.{field}" for layer, field in FIELDS])
def test_a_field_of_the_lock_is_a_variable_of_the_same_type(layer: str, field: str) -> None:
    wanted = schema_of(layer)["properties"][field]
    option = options(layer)[f"{layer}_{field}"]
    kind = "object" if "$ref" in wanted else wanted["type"]
    types = {
        "array": ("list",),
        "string": ("str", "path"),
        "integer": ("int",),
        "boolean": ("bool",),
        "object": ("dict",),
    }
    assert option["type"] in types[kind]
    assert option.get("choices") == wanted.get("enum", wanted.get("items", {}).get("enum"))
    if kind == "array":
        inner = wanted["items"]
        assert option["elements"] in types["object" if "$ref" in inner else inner["type"]]


@pytest.mark.parametrize(("layer", "field"), FIELDS, ids=[f"{layer}.{field}" for layer, field in FIELDS])
def test_role_and_lock_have_the_same_default(layer: str, field: str) -> None:
    wanted = schema_of(layer)["properties"][field]
    if "default" in wanted:
        assert defaults(layer)[f"{layer}_{field}"] == wanted["default"]
    else:
        assert f"{layer}_{field}" not in defaults(layer)
        assert options(layer)[f"{layer}_{field}"].get("required") is True


@pytest.mark.parametrize("role", NAMES)
def test_every_variable_is_specified_and_carries_the_roles_name(role: str) -> None:
    assert sorted(defaults(role).keys() - options(role).keys()) == []
    assert [name for name in options(role) if not name.startswith(f"{role}_")] == []
    assert [name for name, option in options(role).items() if not {"type", "description"} <= option.keys()] == []


@pytest.mark.parametrize("role", NAMES)
def test_no_task_hides_an_error_or_reboots(role: str) -> None:
    hiding = [where for where, task in tasks(role) if "ignore_errors" in task or "ignore_unreachable" in task]
    assert hiding == []
    assert [where for where, task in tasks(role) if "ansible.builtin.reboot" in task] == []


@pytest.mark.parametrize("role", NAMES)
def test_modules_have_their_full_names_and_are_ansibles_own(role: str) -> None:
    others = {
        f"{where}: {key}"
        for where, task in tasks(role)
        for key in task.keys() - KEYWORDS
        if not key.startswith("ansible.builtin.")
    }
    assert others == set()


@pytest.mark.parametrize("role", NAMES)
def test_a_command_says_when_it_changes_something(role: str) -> None:
    programs = {"ansible.builtin.command", "ansible.builtin.shell", "ansible.builtin.script"}
    assert [where for where, task in tasks(role) if programs & task.keys() and "changed_when" not in task] == []


@pytest.mark.parametrize("role", NAMES)
def test_an_assertion_says_more_than_that_it_failed(role: str) -> None:
    mute = [
        where
        for where, task in tasks(role)
        if "ansible.builtin.assert" in task and len(task["ansible.builtin.assert"].get("fail_msg", "").split()) < 8
    ]
    assert mute == []


@pytest.mark.parametrize("role", NAMES)
def test_facts_are_read_from_ansible_facts(role: str) -> None:
    injected = re.compile(
        r"\bansible_(distribution|kernel|architecture|virtualization|service_mgr|os_family|processor)"
    )
    guilty = [str(file) for file in (ROLES / role).rglob("*.*") if _is_text(file) and injected.search(file.read_text())]
    assert guilty == []


def _is_text(file: Path) -> bool:
    return file.suffix in (".yml", ".j2")


def test_a_readme_names_every_variable_and_every_proof(tmp_path: Path) -> None:
    role = tmp_path / "roles/demo"
    for folder in ("meta", "defaults", "tasks"):
        (role / folder).mkdir(parents=True)
    (role / "meta/argument_specs.yml").write_text(
        "argument_specs: {main: {short_description: A demo, description: [It shows], options: {"
        "demo_size: {type: int, description: 'Bytes | at most', choices: [1, 2]}, "
        "demo_parts: {type: list, elements: dict, required: true, description: Such as C(x), options: "
        "{name: {type: str, required: true, description: Its name}}}}}}"
    )
    (role / "defaults/main.yml").write_text("demo_size: 1\n")
    (role / "tasks/verify.yml").write_text(
        "[{name: Outer, block: [{name: It holds, ansible.builtin.assert: {that: x}}]}]"
    )
    page = role_docs.text("demo", tmp_path)
    assert role_docs.roles(tmp_path) == ("demo",)
    assert "| `demo_size` | int | `1` | Bytes \\| at most One of `1`, `2`. |" in page
    assert "| `demo_parts` | list of dict | none: the lock must say | Such as `x` |" in page
    assert "| `demo_parts[].name` | str |  | Its name |" in page
    assert page.endswith("## What verify proves\n- It holds\n")
