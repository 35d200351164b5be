"""Fingerprints as gpg gives them, of keys made here by gpg."""

import os
import shutil
import subprocess

import pytest

from aerie.probe.openpgp import fingerprints


@pytest.fixture(scope="module")
def gpg(tmp_path_factory):
    if shutil.which("gpg") is None:
        pytest.skip("needs gpg")
    home = tmp_path_factory.mktemp("gnupg")
    home.chmod(0o700)
    environment = {**os.environ, "GNUPGHOME": str(home)}

    def run(*argv):
        argv = ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "", *argv]
        return subprocess.run(argv, env=environment, capture_output=True, check=True, timeout=60).stdout

    for name, kind in (("one", "default"), ("two", "rsa2048")):
        run("--quick-generate-key", name, kind, "default", "never")
    yield run
    subprocess.run(["gpgconf", "--kill", "all"], env=environment, check=False)


@pytest.mark.parametrize("armor", [[], ["--armor"]], ids=["binary", "armored"])
def test_primary_keys_and_no_others(gpg, armor):
    rows = [line.split(":") for line in gpg("--list-keys", "--with-colons").decode().splitlines()]
    primary = [rows[at + 1][9] for at, row in enumerate(rows) if row[0] == "pub"]
    assert len(primary) == 2
    assert any(row[0] == "sub" for row in rows), "a subkey's fingerprint must not be among them"
    assert fingerprints(gpg("--export", *armor)) == primary


def test_several_armored_blocks_in_one_file(gpg):
    both = gpg("--export", "--armor", "one") + b"\n" + gpg("--export", "--armor", "two")
    assert len(fingerprints(both)) == 2


def test_what_is_no_keyring_is_an_error():
    with pytest.raises(ValueError, match="not an OpenPGP keyring"):
        fingerprints(b"<html>404</html>")
