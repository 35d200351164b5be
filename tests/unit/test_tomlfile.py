"""TOML with lines: every value's line is found, however it is written."""

import tomllib
from pathlib import Path

import pytest

from aerie.tomlfile import parse

TEXT = '''\
# comment with [brackets] and key = 1
schema = "x"   # trailing
"quoted.key" = 'lit#eral'
a.b = 1
text = """
[not.a.table]
key = 2 \\""" still
"""
lit = \'\'\'
[nor = this]\'\'\'
list = [
    1, 2,  # [
    "]",
    { name = "n", v = [3, 4] },
]
empty = []
date = 2026-11-30T07:00:00Z

[table]
on = true
inline = { x = { y = 1 }, z = "}" }
[table.sub]
k = -1.5e3

[[rows]]
id = 1
[[rows]]
id = 2
[rows.more]
deep = 3
[[rows.inner]]
q = 1
'''


@pytest.fixture
def document(tmp_path: Path):
    file = tmp_path / "x.toml"
    file.write_text(TEXT)
    return parse(file, "x.toml")


def paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def test_every_value_has_a_place_and_no_place_is_made_up(document):
    assert document.problems == []
    assert document.data == tomllib.loads(TEXT)
    assert set(document.places) == set(paths(document.data))


@pytest.mark.parametrize(
    ("path", "fragment"),
    [
        (("schema",), "schema"),
        (("quoted.key",), '"quoted.key"'),
        (("a", "b"), "a.b"),
        (("list",), "list ="),
        (("list", 2), '"]"'),
        (("list", 3, "v", 1), "{ name"),
        (("table",), "[table]"),
        (("table", "inline", "z"), "inline"),
        (("table", "sub", "k"), "k = -1"),
        (("rows", 1, "id"), "id = 2"),
        (("rows", 1, "more", "deep"), "deep"),
        (("rows", 1, "inner", 0, "q"), "q = 1"),
    ],
)
def test_the_line_is_where_the_key_stands(document, path, fragment):
    line = next(number for number, text in enumerate(TEXT.splitlines(), 1) if text.lstrip().startswith(fragment))
    assert document.places[path] == f"x.toml:{line}"


@pytest.mark.parametrize(
    ("data", "where", "seen"),
    [
        (b"a = 1\nb = \n", "x.toml:2", "Invalid value in the value of b"),
        (b"a = 1\n\nb = [1,\n", "x.toml:4", "Invalid value"),
        (b"a = \xff\n", "x.toml:1", "byte 4 is not UTF-8"),
    ],
)
def test_what_is_no_toml_has_its_line(tmp_path, data, where, seen):
    file = tmp_path / "x.toml"
    file.write_bytes(data)
    (problem,) = parse(file, "x.toml").problems
    assert (problem.where, problem.seen) == (where, seen)
