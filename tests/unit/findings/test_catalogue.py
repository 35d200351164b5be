"""The catalogue itself."""

import re

from aerie.findings import Fix, catalogue, rows, xid
from aerie.layers import LAYERS

ID = re.compile(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*")


def test_ids_have_two_parts_and_begin_with_a_layer():
    wrong = [row.id for row in rows().values() if not ID.fullmatch(row.id) or row.layer not in LAYERS]
    assert wrong == []


def test_rows_stand_in_the_order_of_layers_and_once():
    layers = [LAYERS.index(row.layer) for row in rows().values()]
    assert layers == sorted(layers)
    assert catalogue.FILE.read_text().count("[[finding]]") == len(rows())


def test_every_row_says_what_it_is_and_where_it_was_seen():
    assert [row.id for row in rows().values() if not (row.title.endswith(".") and row.source)] == []


def test_what_provision_mends_names_its_command():
    wrong = [
        row.id
        for row in rows().values()
        if Fix.PROVISION in row.remedies
        and not row.remedies[Fix.PROVISION].startswith("./invoke provision --host {host} ")
    ]
    assert wrong == []


def test_every_xid_has_one_action():
    codes = [code for action in xid.actions().values() for code in action.codes]
    assert len(codes) == len(set(codes)) == xid.FILE.read_text().count("[[xid]]")


def test_xids_of_the_field_reports_have_an_action():
    by_code = {code: action.name for action in xid.actions().values() for code in action.codes}
    assert {79, 119, 120, 62, 95, 109, 140, 143, 158, 64, 63, 94, 13, 31, 43, 45, 92, 48, 54, 154, 169} == set(by_code)
    assert by_code[79] == "restart-host"
