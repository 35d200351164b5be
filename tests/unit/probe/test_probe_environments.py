"""Python environments that aerie made."""

import hashlib

from aerie.probe import environments


def test_environments(tree):
    lines = b"torch==2.14.1\n"
    root = tree(
        {
            "/opt/aerie/environments/serve/pyvenv.cfg": "home = /usr/bin\nversion = 3.12.3\n",
            "/opt/aerie/environments/serve/requirements.txt": lines,
            "/opt/aerie/environments/train/pyvenv.cfg": "home = /usr/bin\nversion_info = 3.12.3.final.0\n",
            "/opt/aerie/environments/half-made/lib/x": "",
        }
    )
    found = environments.environments(root)
    assert list(found) == ["serve", "train"]
    assert found["serve"] == {
        "name": "serve",
        "path": "/opt/aerie/environments/serve",
        "python": "3.12.3",
        "requirements_sha256": hashlib.sha256(lines).hexdigest(),
    }
    assert found["train"]["python"] == "3.12.3"
    assert "no such file" in found["train"]["requirements_sha256"]["unknown"]


def test_ensurepip_is_what_makes_venv_work(tree):
    import platform

    series = ".".join(platform.python_version_tuple()[:2])
    root = tree({f"/usr/lib/python{series}/venv/__init__.py": ""})
    assert environments.python(root)["has_venv"] is False
    root = tree({f"/usr/lib/python{series}/ensurepip/__init__.py": ""})
    assert environments.python(root)["has_venv"] is True
