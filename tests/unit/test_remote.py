"""The door to hosts, as far as it goes without one: this machine, sockets that are no ssh server, and the inventory."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerie import remote
from aerie.errors import AerieError, UsageError
from aerie.inventory import Host
from aerie.remote import Unreachable
from aerie.remote.connection import _connection, connected
from tests.ports import reserved


def host(**values) -> Host:
    fields = {"name": "gpu01", "address": "127.0.0.1", "user": "ubuntu", "connection": "ssh", **values}
    return Host(**fields)


LOCAL = host(name="localhost", connection="local")


def test_a_program_on_this_machine():
    done = remote.run(LOCAL, ["sh", "-c", 'cat; echo "$0"; echo no >&2; exit 3', "a b"], stdin=b"in\n")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "in\na b\n", "no\n")
    assert done.tail == "no"


def test_a_program_that_is_not_there():
    assert remote.run(LOCAL, ["/nonexistent/program"]).exit_code == 127


def test_one_that_does_not_end_in_time():
    with pytest.raises(AerieError, match=r"host localhost: sleep 60: 'no end after 0\.1 s'"):
        remote.run(LOCAL, ["sleep", "60"], timeout_s=0.1)


def test_one_that_prints_too_much():
    with pytest.raises(AerieError, match="more than 1048576 bytes of output"):
        remote.run(LOCAL, ["head", "-c", "1048577", "/dev/zero"])


def test_put_writes_all_at_once(tmp_path):
    path = tmp_path / "a folder" / "file"
    remote.put(LOCAL, str(path), b"\0one\n", 0o640)
    remote.put(LOCAL, str(path), b"\0two\n", 0o640)
    assert path.read_bytes() == b"\0two\n"
    assert path.stat().st_mode & 0o7777 == 0o640
    assert os.listdir(path.parent) == ["file"]


def test_put_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AerieError, match=r"host localhost: .*file/x") as raised:
        remote.put(LOCAL, str(tmp_path / "file" / "x"), b"")
    assert "mkdir" in str(raised.value.seen)


def test_a_snapshot_of_this_machine():
    found = remote.probe(LOCAL)
    assert found.machine.hostname == socket.gethostname()
    assert found.is_root is (os.geteuid() == 0)


def test_another_interpreter_that_is_not_there():
    where = host(
        name="localhost", connection="local", variables={"ansible_python_interpreter": "/opt/none/bin/python3"}
    )
    with pytest.raises(remote.Unprobed) as raised:
        remote.probe(where)
    assert raised.value.cause == "python"
    assert "apt-get install python3" in raised.value.remedy


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def cause(where: Host, connect_timeout_s: float = 120) -> Unreachable:
    with pytest.raises(Unreachable) as raised:
        remote.run(where, ["true"], connect_timeout_s=connect_timeout_s)
    return raised.value


def test_refused():
    with reserved() as port:  # bound, and nobody listens
        error = cause(host(port=port))
    assert error.cause == "refused"
    assert str(error) == (
        f"host gpu01: 'ubuntu@127.0.0.1:{port} refuses connections', expected an ssh server. "
        "Check that sshd runs there, and ansible_port."
    )


def test_no_answer(listener, capfd):
    error = cause(host(port=listener.getsockname()[1]), connect_timeout_s=1)
    assert error.cause == "timeout"
    assert "within 1 s" in str(error)
    assert capfd.readouterr().err == "", "paramiko's tracebacks are not for operators"


def test_a_name_that_does_not_resolve():
    error = cause(host(address="no-such-host.invalid"))
    assert error.cause == "name"
    assert error.remedy == "Set ansible_host in the inventory."


def test_something_that_is_no_ssh_server(listener):
    import threading

    def answer() -> None:
        peer, _ = listener.accept()
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.close()

    thread = threading.Thread(target=answer)
    thread.start()
    error = cause(host(port=listener.getsockname()[1]))
    thread.join()
    assert error.cause == "ssh"
    assert "ssh -v ubuntu@127.0.0.1" in error.remedy


def test_only_ssh_and_local():
    with pytest.raises(UsageError, match="ansible_connection: docker"):
        remote.run(host(connection="docker"), ["true"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write ~/.ssh/config of a home of our own, and give that home."""

    def write(config: str) -> Path:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh/config").write_text(config)
        return tmp_path

    return write


def test_the_inventory_s_arguments_win_over_ssh_s_own_configuration(home):
    folder = home("Host 192.0.2.11\n  User root\n  Port 2222\n  ConnectTimeout 3\n  UserKnownHostsFile /from/config\n")
    hosts_file = f"{folder}/my hosts"
    variables = {
        "ansible_ssh_private_key_file": "~/key",
        "ansible_ssh_common_args": f"-o UserKnownHostsFile='{hosts_file}' -o ProxyJump=jump@192.0.2.1:2200 -oPort=1",
    }
    made = _connection(host(address="192.0.2.11", user=None, variables=variables), 5)
    assert (made.user, made.port, made.host) == ("root", 1, "192.0.2.11")
    assert made.ssh_config["userknownhostsfile"] == hosts_file
    assert made.connect_kwargs["key_filename"] == [f"{folder}/key"]
    assert (made.gateway.host, made.gateway.user, made.gateway.port) == ("192.0.2.1", "jump", 2200)
    assert "userknownhostsfile" not in made.gateway.ssh_config


def test_ssh_s_own_configuration_names_address_user_and_key(home):
    folder = home("Host gpu01\n  HostName 192.0.2.11\n  User root\n  IdentityFile ~/.ssh/gpu\n")
    made = _connection(host(address="gpu01", user=None), 5)
    assert (made.user, made.host, made.port) == ("root", "192.0.2.11", 22)
    assert str(folder / ".ssh/gpu") in made.connect_kwargs["key_filename"]


def test_no_key_is_ever_added(home):
    home("")
    variables = {"ansible_ssh_common_args": "-o ProxyJump=192.0.2.1 -o StrictHostKeyChecking=no"}
    made = _connection(host(variables=variables), 5)
    policies = [type(hop.client._policy).__name__ for hop in (made, made.gateway)]
    assert policies == ["RejectPolicy", "RejectPolicy"]


@pytest.mark.parametrize(
    ("words", "seen"),
    [("-F /other/config", "-F is not an argument"), ("-o", "an argument without"), ("-o 'x", "No closing quotation")],
)
def test_arguments_that_nobody_knows(words, seen):
    where = host(variables={"ansible_ssh_extra_args": words})
    with pytest.raises(UsageError, match=seen), connected(where):
        pass


def test_many_hosts_each_with_its_own_answer(listener):
    port = listener.getsockname()[1]
    hosts = [LOCAL, host(name="silent", port=port), host(name="gone", address="no-such-host.invalid")]
    found = remote.probe_all(hosts, connect_timeout_s=1)
    assert list(found) == ["localhost", "silent", "gone"]
    assert found["localhost"].schema == "aerie.snapshot/1"
    assert [getattr(found[name], "cause", None) for name in ("silent", "gone")] == ["timeout", "name"]
