"""Locks: what is read, what a wrong one is told with line and key, and the names of driver packages."""

import re
from pathlib import Path

import pytest

from aerie import lock
from aerie.errors import UsageError
from aerie.inventory import specs
from aerie.layers import LAYERS
from aerie.lock import Lock
from aerie.lock.repositories import trees
from aerie.paths import repository
from aerie.runbook.yamlfile import SpecError

SHIPPED = lock.names()
NAME = "ubuntu2404-cuda131"
TEXT = lock.path(NAME).read_text()


@pytest.fixture
def written(tmp_path: Path):
    """A lock written into an inventory's folder, which it gives."""

    def write(text: str, name: str = NAME) -> Path:
        folder = tmp_path / "locks"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.lock.toml").write_text(text)
        return tmp_path

    return write


def line_of(text: str, fragment: str) -> int:
    return text[: text.index(fragment)].count("\n") + 1


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_lock_is_right_and_says_what_it_is(name):
    loaded = lock.load(name)
    assert (loaded.name, loaded.driver.flavour, loaded.cuda.source) == (name, "open", "apt")


def test_the_shipped_locks_are_the_proven_pairs_of_driver_kernel_and_toolkit():
    pairs = {
        name: (loaded.driver.version, loaded.kernel.series, loaded.cuda.release)
        for name in SHIPPED
        if (loaded := lock.load(name)).systems == ("ubuntu-24.04",)
    }
    assert pairs == {
        "ubuntu2404-cuda131": ("590.48.01", ("6.8",), "13.1.1"),
        "ubuntu2404-cuda131-r595": ("595.58.03", ("6.17",), "13.1.1"),
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_lock_brings_in_no_metapackage_that_drags_a_driver(name):
    names = {package.name for package in lock.load(name).cuda.packages}
    assert not [one for one in names if re.fullmatch(r"cuda(-\d+-\d+)?|cuda-(toolkit|compat|drivers).*", one)]


# NVIDIA's names carry the branch up to 580 and are bare from 590 on (NVIDIA/ansible-role-nvidia-driver, PR #89).
@pytest.mark.parametrize("os_id", ["ubuntu", "debian"])
@pytest.mark.parametrize(
    ("version", "flavour", "pinning", "packages"),
    [
        ("580.105.08", "open", None, ("nvidia-open-580",)),
        ("580.105.08", "closed", None, ("cuda-drivers-580",)),
        ("590.48.01", "open", "nvidia-driver-pinning-590.48.01", ("nvidia-open",)),
        ("590.48.01", "closed", "nvidia-driver-pinning-590.48.01", ("cuda-drivers",)),
        ("595.58.03", "open", "nvidia-driver-pinning-595.58.03", ("nvidia-open",)),
        ("610.57.04", "open", "nvidia-driver-pinning-610.57.04", ("nvidia-open",)),
    ],
)
def test_driver_packages_lose_their_suffix_at_590(version, flavour, pinning, packages, os_id):
    names = lock.driver_packages(version, flavour, os_id)
    assert (names.pinning, names.packages) == (pinning, packages)


@pytest.mark.parametrize(("flavour", "os_id"), [("opne", "ubuntu"), ("open", "fedora")])
def test_driver_packages_of_what_is_not_known_are_not_guessed(flavour, os_id):
    with pytest.raises(ValueError, match="no driver packages known"):
        lock.driver_packages("590.48.01", flavour, os_id)


def test_a_locks_fields_are_the_roles_variables_as_plain_values():
    variables = lock.role_variables(lock.load(NAME))
    assert variables["driver_version"] == "590.48.01"
    assert variables["driver_repository"]["key_fingerprint"] == "EB693B3035CD5710E231E123A4B469963BF863CC"
    assert variables["cuda_packages"][0] == {"name": "cuda-nvcc-13-1", "version": "13.1.115-1"}
    assert variables["kernel_series"] == ["6.8"]
    assert not [key for key in variables if key.startswith(("name", "schema", "severity", "systems"))]


@pytest.mark.parametrize("layer", LAYERS)
def test_every_value_of_a_shipped_lock_is_one_that_its_role_takes(layer):
    known, document = specs.options(layer), specs.Document(file=layer)
    variables = {key: value for name in SHIPPED for key, value in lock.role_variables(lock.load(name)).items()}
    own = {key: value for key, value in variables.items() if key.startswith(f"{layer}_")}
    if known:
        assert sorted(set(own) - set(known)) == []
    for key in set(own) & set(known):
        specs.check((key,), known[key], own[key], document)
    assert document.problems == []


def test_a_hosts_variables_win_over_its_lock_and_others_are_left_alone():
    loaded = lock.load(NAME)
    own = lock.with_variables(loaded, {"storage_path": "/data", "driver_holds": True, "aerie_lock": "x"})
    assert own.storage.path == "/data"
    assert own.model_copy(update={"storage": loaded.storage}) == loaded


def test_a_lock_beside_the_inventory_wins_over_the_shipped_one(written):
    folder = written(TEXT.replace("590.48.01", "590.44.01"))
    assert lock.load(NAME, folder).driver.version == "590.44.01"
    assert lock.load("ubuntu2404-cuda131-r595", folder).driver.version == "595.58.03"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ubuntu2404-cuda132", "Did you mean ubuntu2404-cuda131"),
        ("../locks/ubuntu2404-cuda131", "one of"),
        ("", "one of"),
    ],
)
def test_an_unknown_lock_is_told_the_nearest(name, said):
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        lock.load(name)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        ('version = "590.48.01"', "version = 590", "driver.version", "590, expected string"),
        ('version = "590.48.01"', 'version = "590"', "driver.version", "'590', expected"),
        ('flavour = "open"', 'flavour = "opne"', "driver.flavour", "'opne', expected 'open' or 'closed'"),
        ("persistence = true", 'persistence = "yes"', "driver.persistence", "'yes', expected boolean"),
        ("link_gen = 5", "link_gne = 5", "interconnect.link_gne", "an unknown key"),
        ("[interconnect]", "[interconect]", "interconect", "Did you mean interconnect?"),
        ("[storage]", "[storage.disk]", "storage.disk", "an unknown key"),
        ("min_free_gb = 700", 'min_free_gb = "700"', "storage.min_free_gb", "'700', expected integer"),
        ("d2a6b11c", "D2A6B11C", "driver.repository.key_sha256", "expected"),
        ('version = "13.1.80-1" }', "version = 13 }", "cuda.packages[3].version", "13, expected string"),
        ('systems = ["ubuntu-24.04"]', "systems = []", "systems", "at least 1 item"),
        ('systems = ["ubuntu-24.04"]', 'systems = ["Ubuntu 24.04"]', "systems[0]", "'Ubuntu 24.04'"),
        ('schema = "aerie.lock/1"', 'schema = "aerie.lock/2"', "schema", "'aerie.lock/2', expected 'aerie.lock/1'"),
        ('name = "ubuntu2404-cuda131"', 'name = "other"', "name", "as the file is called"),
        ('source = "apt"', 'source = "wheels"', "cuda.source", "'wheels' without wheels"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_key(written, old, new, key, said):
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    with pytest.raises(SpecError) as raised:
        lock.load(NAME, written(text))
    first = raised.value.problems[0]
    assert (first.where.rpartition(":")[2], first.key) == (str(line_of(text, new)), key)
    assert said in str(first)


def test_all_that_is_wrong_is_said_at_once(written):
    text = TEXT.replace('flavour = "open"', 'flavour = "x"').replace("link_width = 16", 'link_width = "16"')
    with pytest.raises(SpecError) as raised:
        lock.load(NAME, written(text))
    assert [problem.key for problem in raised.value.problems] == ["driver.flavour", "interconnect.link_width"]


def test_a_missing_key_is_named_with_the_line_of_its_table(written):
    text = TEXT.replace('release = "13.1.1"\n', "")
    with pytest.raises(SpecError) as raised:
        lock.load(NAME, written(text))
    problem = raised.value.problems[0]
    assert (problem.key, problem.where.rpartition(":")[2]) == ("cuda.release", str(line_of(text, "[cuda]")))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('flavour = "open"', "flavour = open", "Invalid value in the value of flavour"),
        ('flavour = "open"', 'flavour = "open', "Illegal character '\\n' in the value of flavour"),
        ("link_width = 16", "link_width 16", "Expected '=' after a key"),
        ("link_width = 16", "link_width = 16\nlink_width = 8", "Cannot overwrite a value in the value of link_width"),
    ],
    ids=["no-quotes", "open-quote", "no-equals", "twice"],
)
def test_what_is_no_toml_is_named_with_its_line(written, old, new, said):
    text = TEXT.replace(old, new, 1)
    line = line_of(text, new) + new.count("\n")
    with pytest.raises(SpecError) as raised:
        lock.load(NAME, written(text))
    first = raised.value.problems[0]
    assert first.seen.startswith(said)
    assert int(first.where.rpartition(":")[2]) in (line, line + 1)


@pytest.mark.parametrize(
    ("systems", "said"),
    [
        ('["debian-13"]', "debian13/x86_64/ for debian-13"),
        ('["debian-12"]', "debian12/x86_64/ for debian-12"),
        ('["ubuntu-22.04"]', "a repository for ubuntu-22.04 on x86_64"),
    ],
)
def test_a_repository_of_another_distribution_is_refused_with_the_right_one(written, systems, said):
    with pytest.raises(SpecError, match=re.escape(said)) as raised:
        lock.load(NAME, written(TEXT.replace('["ubuntu-24.04"]', systems)))
    assert [problem.key for problem in raised.value.problems] == ["driver.repository.uri"]


def test_debian_13s_repository_with_the_sha1_key_is_refused(written):
    text = TEXT.replace('["ubuntu-24.04"]', '["debian-13"]').replace("repos/ubuntu2404/", "repos/debian13/")
    with pytest.raises(SpecError) as raised:
        lock.load(NAME, written(text))
    problem = raised.value.problems[0]
    assert problem.key == "driver.repository.key_fingerprint"
    assert problem.expected == "02182E60104FCDC26EAE1B8597A5D4CB8793F200"


def test_a_mirror_needs_no_known_tree(written):
    text = TEXT.replace("https://developer.download.nvidia.com/compute", "http://10.77.0.1:8080")
    assert lock.load(NAME, written(text)).driver.repository.uri.startswith("http://10.77.0.1")


def test_the_locks_keyrings_are_those_of_the_table_of_repositories():
    known = {tree.system: tree.repository for tree in trees() if tree.arch == "x86_64"}
    assert {name: lock.load(name).driver.repository for name in SHIPPED} == {
        name: known[lock.load(name).systems[0]] for name in SHIPPED
    }


def test_an_environment_must_be_the_file_of_the_checkout(written):
    row = '{ name = "serve", requirements = "requirements/engine.txt", sha256 = "' + "0" * 64 + '" }'
    text = TEXT.replace('version = "3.12"', f'version = "3.12"\nenvironments = [\n    {row},\n]')
    with pytest.raises(SpecError) as raised:
        lock.load(NAME, written(text))
    problem = raised.value.problems[0]
    assert (problem.key, int(problem.where.rpartition(":")[2])) == (
        "python.environments[0].sha256",
        line_of(text, "requirements/engine.txt"),
    )
    with pytest.raises(SpecError, match="a file of the checkout"):
        lock.load(NAME, written(text.replace("engine.txt", "none.txt")))


def test_a_severity_is_for_a_finding_of_a_layer(written):
    loaded = lock.load(NAME, written(TEXT + '[severity]\n"storage.readahead-low" = "info"\n'))
    assert loaded.severity == {"storage.readahead-low": "info"}
    with pytest.raises(SpecError, match=r"severity\.storage\.read.*Did you mean storage\.readahead-low"):
        lock.load(NAME, written(TEXT + '[severity]\n"storage.read-ahead-low" = "info"\n'))
    with pytest.raises(SpecError, match=r"severity\.storage"):
        lock.load(NAME, written(TEXT + '[severity]\nstorage = "info"\n'))


def test_a_frozen_lock_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        lock.load(NAME).driver.version = "1.2"


def test_every_lock_file_of_the_repository_is_found():
    files = (repository() / "inventory" / "locks").iterdir()
    assert sorted(f"{name}.lock.toml" for name in SHIPPED) == sorted(file.name for file in files)
    assert isinstance(lock.load(SHIPPED[0]), Lock)
