"""The texts under the fields of models, which pages and schemas show.

pydantic can read them too (use_attribute_docstrings), but does so whenever a model is made: 60 ms of every start.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

__all__ = ["add_to_schema", "field_texts"]


@cache
def field_texts(model: type[BaseModel]) -> Mapping[str, str]:
    """The text under each field of the model that has one, by the field's name."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel:
            found |= _of_class(one)
    return found


def add_to_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the texts of a model and of those inside of it to its JSON Schema, as descriptions."""
    models = {model.__name__: model, **{one.__name__: one for one in _inside(model)}}
    tables = {**schema.get("$defs", {}), model.__name__: schema}
    for name, table in tables.items():
        described = models.get(name)
        if described is None:
            continue
        for field, text in field_texts(described).items():
            key = described.model_fields[field].alias or field
            if key in table.get("properties", {}):
                table["properties"][key].setdefault("description", text)


def _of_class(model: type[BaseModel]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef), "the source of a class"
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found


def _inside(model: Any) -> set[type[BaseModel]]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        inner = {one for info in model.model_fields.values() for one in _inside(info.annotation)}
        return {model, *inner}
    return {one for argument in getattr(model, "__args__", ()) for one in _inside(argument)}
