"""The grid of a play: what Ansible's events say of hosts and layers."""

from aerie.apply import Cell, Grid, HostInput


def grid(*layers: str, reasons: tuple[str, ...] = ()) -> Grid:
    variables = {"aerie_reboot_reasons": list(reasons)}
    hosts = [
        HostInput(host=name, layers=layers, group="g", group_variables={}, variables=variables)
        for name in ("gpu01", "gpu02")
    ]
    return Grid.of(hosts)


def event(kind: str, role: str, host: str = "gpu01", task: str = "Install", **more: object) -> dict[str, object]:
    return {"event": f"runner_on_{kind}", "event_data": {"host": host, "role": role, "task": task, **more}}


def cells(seen: Grid, host: str = "gpu01") -> dict[str, str]:
    return {layer: str(cell) for layer, cell in seen.rows[host].cells.items()}


def test_a_layer_runs_then_the_next_one_ends_it():
    seen = grid("base", "driver")
    seen.feed(event("start", "base"))
    assert cells(seen) == {"base": "running", "driver": "pending"}
    seen.feed(event("ok", "base", res={"changed": False}))
    seen.feed(event("start", "driver"))
    assert cells(seen) == {"base": "ok", "driver": "running"}
    assert cells(seen, "gpu02") == {"base": "pending", "driver": "pending"}


def test_one_change_makes_a_layer_changed_for_good():
    seen = grid("base")
    seen.feed(event("start", "base"))
    seen.feed(event("ok", "base", res={"changed": True}))
    seen.feed(event("ok", "base", res={"changed": False}))
    seen.finish()
    (first, second) = seen.results()
    assert (first.state, first.changed, first.cells) == ("ok", 1, {"base": Cell.CHANGED})
    assert second.cells == {"base": Cell.PENDING}


def test_a_failure_says_the_task_its_message_and_the_end_of_its_output():
    seen = grid("driver")
    seen.feed(event("start", "driver"))
    result = {"msg": "non-zero return code", "stderr": "E: Unable to locate package nvidia-open"}
    seen.feed(event("failed", "driver", res=result))
    seen.finish()
    first = seen.results()[0]
    assert (first.state, first.cells["driver"]) == ("failed", Cell.FAILED)
    assert first.error == "Install: non-zero return code\nE: Unable to locate package nvidia-open"


def test_a_failed_loop_says_what_its_items_say():
    seen = grid("driver")
    items = [{"failed": False, "msg": "fine"}, {"failed": True, "msg": "590.48.01 is not built for 6.17.0-20"}]
    seen.feed(event("failed", "driver", res={"msg": "One or more items failed", "results": items}))
    assert seen.results()[0].error == "Install: 590.48.01 is not built for 6.17.0-20"


def test_what_dpkg_says_is_told_where_apt_says_only_that_it_failed():
    seen = grid("base")
    stdout = "Unpacking figlet ...\r\ndpkg: error processing archive f.deb (--unpack):\r\n No space left on device\r\n"
    stderr = "E: Sub-process /usr/bin/dpkg returned an error code (1)"
    seen.feed(event("failed", "base", res={"msg": "apt-get failed", "stdout": stdout, "stderr": stderr}))
    assert seen.results()[0].error.splitlines() == [
        "Install: apt-get failed", stderr, "dpkg: error processing archive f.deb (--unpack):",
        " No space left on device",
    ]  # fmt: skip


def test_an_ignored_failure_is_none():
    seen = grid("driver")
    seen.feed(event("failed", "driver", res={"msg": "no"}, ignore_errors=True))
    assert seen.results()[0].state == "ok"


def test_long_output_keeps_its_message_and_its_end():
    seen = grid("driver")
    output = "\n".join(f"line {number}" for number in range(100))
    seen.feed(event("failed", "driver", res={"msg": "make failed", "stdout": output}))
    lines = seen.results()[0].error.splitlines()
    assert (len(lines), lines[0], lines[-1]) == (12, "Install: make failed", "line 99")


def test_an_unreachable_host_is_told_from_a_failed_one():
    seen = grid("base")
    seen.feed(event("unreachable", "base", res={"msg": "Failed to connect to the host via ssh"}))
    assert [one.state for one in seen.results()] == ["unreachable", "ok"]


def test_reasons_of_roles_replace_those_given_and_a_reboot_is_seen():
    seen = grid("kernel", reasons=("driver.version-mismatch: loaded 580.95.05",))
    collected = ["driver.version-mismatch: loaded 580.95.05", "kernel.cmdline-drift: iommu=pt"]
    seen.feed(event("ok", "kernel", res={"ansible_facts": {"aerie_reboot_reasons": collected}}))
    seen.feed(event("start", "", task_action="ansible.builtin.reboot"))
    assert cells(seen)["reboot"] == "running"
    seen.feed(event("ok", "", task_action="ansible.builtin.reboot", res={"rebooted": True, "changed": True}))
    first, second = seen.results()
    assert (first.has_rebooted, first.reboot_reasons, first.cells["reboot"]) == (True, tuple(collected), Cell.CHANGED)
    assert (second.has_rebooted, second.reboot_reasons) == (False, ("driver.version-mismatch: loaded 580.95.05",))


def test_events_of_other_hosts_and_kinds_change_nothing():
    seen = grid("base")
    seen.feed({"event": "playbook_on_stats", "event_data": {}})
    seen.feed({"event": "runner_on_ok", "event_data": {"host": "elsewhere", "role": "base"}})
    assert cells(seen) == {"base": "pending"}


def test_a_host_that_was_stopped_because_of_others_is_not_done():
    seen = grid("base")
    seen.feed(event("start", "base", play="Apply the layers that differ"))
    seen.feed(event("failed", "base", host="gpu02", play="Apply the layers that differ", res={"msg": "no"}))
    seen.finish("Leave a receipt")
    first, second = seen.results()
    assert (first.state, first.cells, second.state) == ("failed", {"base": Cell.PENDING}, "failed")
    assert "--max-fail-percentage" in first.error and "no" in second.error


def test_a_host_that_does_not_come_back_was_rebooted_all_the_same():
    seen = grid("kernel")
    result = {"msg": "Timed out waiting for last boot time check (timeout=10)", "rebooted": True}
    seen.feed(event("failed", "", task_action="ansible.builtin.reboot", res=result))
    first = seen.results()[0]
    assert (first.state, first.has_rebooted) == ("failed", True)
