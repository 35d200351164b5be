"""Text that Python itself ships: questions about documented names with their docstrings, and prose from its manual.

The same Python gives the same corpus, byte for byte: modules come from a fixed list, names are sorted, and what is
held out is chosen by hash. Standard library only. Read it before other libraries are imported: one that replaces a
documented function (as a debugger does) changes the text.
"""

import hashlib
import importlib
import inspect
import pydoc_data.topics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from aerie.errors import AerieError

__all__ = ["MODULES", "TEMPLATES", "Pair", "ask", "manual", "pairs", "split"]

TEMPLATES = ("What does {name} do?", "Explain {name}.", "Describe {name} in Python.", "How do I use {name}?")

# Modules without side effects on import that Python 3.11 to 3.13 all have; one that this build lacks is skipped.
_NAMES = """
abc argparse array ast asyncio asyncio.queues asyncio.streams asyncio.tasks base64 bdb binascii bisect builtins bz2
calendar cmd code codecs codeop collections colorsys compileall concurrent.futures configparser contextlib copy csv
ctypes dataclasses datetime decimal difflib dis doctest email.message email.mime.text enum fileinput filecmp fnmatch
fractions ftplib functools gc getpass gettext glob gzip hashlib heapq hmac html html.parser http.client http.cookiejar
http.cookies http.server imaplib importlib importlib.abc importlib.util inspect io ipaddress itertools json linecache
locale logging logging.handlers lzma mailbox math mimetypes mmap multiprocessing multiprocessing.pool netrc numbers
operator optparse os os.path pathlib pdb pickle pickletools pkgutil platform plistlib poplib pprint profile pstats
pyclbr queue random re reprlib runpy sched secrets select selectors shelve shlex shutil signal site smtplib socket
socketserver sqlite3 ssl stat statistics string struct subprocess symtable sys sysconfig tarfile tempfile textwrap
threading time timeit tokenize trace traceback tracemalloc types unicodedata unittest unittest.mock urllib.parse
urllib.request urllib.robotparser uuid warnings wave weakref wsgiref.util xml.dom.minidom xml.etree.ElementTree
xmlrpc.client zipfile zipimport zlib
"""
MODULES = tuple(_NAMES.split())
_MIN_CHARS = 30  # shorter docstrings ("Return self.") say the same of many names
_MIN_PAIRS = 200


@dataclass(frozen=True, slots=True)
class Pair:
    """A dotted name ("heapq.heappush") and what Python says about it (the leading paragraphs of its docstring)."""

    name: str
    text: str


def ask(name: str, template: int) -> str:
    """The prompt about `name`; any integer picks one of TEMPLATES."""
    return TEMPLATES[template % len(TEMPLATES)].format(name=name)


def pairs(max_chars: int, modules: Iterable[str] = MODULES) -> list[Pair]:
    """Every documented public name of `modules`, sorted by name; a text that two names share stays with the first.

    max_chars: whole paragraphs are taken while they fit; a name whose first paragraph does not fit is left out.
    Raises AerieError when this Python has next to no docstrings.
    """
    texts: dict[str, str] = {}
    for name, value in sorted(_named(modules), key=lambda item: item[0]):
        text = _leading_paragraphs(getattr(value, "__doc__", None), max_chars)
        if len(text) >= _MIN_CHARS:
            texts.setdefault(text, name)
    if len(texts) < _MIN_PAIRS:
        raise AerieError(
            "corpus",
            seen=f"{len(texts)} documented names",
            expected=f"at least {_MIN_PAIRS}",
            remedy="Use a Python with docstrings (without -OO and PYTHONOPTIMIZE=2).",
        )
    return sorted((Pair(name, text) for text, name in texts.items()), key=lambda pair: pair.name)


def split(everything: Sequence[Pair], held_out: int) -> tuple[list[Pair], list[Pair]]:
    """(train, held): `held` has `held_out` pairs of which neither name nor text occurs in any train pair.

    Both are in an order that only the names decide, mixed over the modules.
    """
    mixed = sorted(everything, key=lambda pair: hashlib.sha256(pair.name.encode()).digest())
    held: list[Pair] = []
    for pair in mixed:
        if len(held) == held_out:
            break
        # "os.path" also occurs in "os.path.join" and in texts about it, so it cannot be held out.
        if not any(
            pair.name in other.name or pair.name in other.text or pair.text in other.text
            for other in everything
            if other is not pair
        ):
            held.append(pair)
    if len(held) < held_out:
        raise AerieError(
            "corpus.held_out",
            seen=held_out,
            expected=f"at most {len(held)}, the names that occur nowhere else",
            remedy="Lower corpus.held_out in the profile.",
        )
    chosen = set(held)
    return [pair for pair in mixed if pair not in chosen], held


def manual(max_chars: int, without: Iterable[str] = ()) -> list[Pair]:
    """(topic, paragraphs) of Python's language reference, at most `max_chars` each, in the manual's order.

    without: a paragraph with one of these strings is left out.
    """
    banned = tuple(without)
    pieces: list[Pair] = []
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        paragraphs = [_one_space(paragraph) for paragraph in text.split("\n\n")]
        pieces += (
            Pair(topic, paragraph)
            for paragraph in paragraphs
            if 80 <= len(paragraph) <= max_chars and not any(word in paragraph for word in banned)
        )
    return pieces


def _named(modules: Iterable[str]) -> Iterator[tuple[str, object]]:
    for module_name in sorted(set(modules)):
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        yield module_name, module
        for name, value in _members(module, module):
            yield f"{module_name}.{name}", value
            if inspect.isclass(value):
                for method, function in _members(value, module):
                    yield f"{module_name}.{name}.{method}", function


def _members(owner: ModuleType | type, module: ModuleType) -> Iterator[tuple[str, object]]:
    for name, value in sorted(vars(owner).items(), key=lambda item: item[0]):
        if name.startswith("_"):
            continue
        if inspect.isclass(owner):
            # Not plain attributes: an int would come with the docstring of int.
            if inspect.isroutine(value) or inspect.isdatadescriptor(value):
                yield name, value
        elif (inspect.isclass(value) or inspect.isroutine(value)) and _root(value.__module__) == _root(module.__name__):
            yield name, value  # and not what the module only imported


def _root(module_name: str | None) -> str:
    return (module_name or "").lstrip("_").split(".")[0]


def _leading_paragraphs(doc: object, max_chars: int) -> str:
    if not isinstance(doc, str):
        return ""
    text = ""
    for paragraph in inspect.cleandoc(doc).split("\n\n"):
        longer = f"{text}\n\n{_one_space(paragraph)}".strip()
        if len(longer) > max_chars:
            break
        text = longer
    return text


def _one_space(text: str) -> str:
    return " ".join(text.split())
