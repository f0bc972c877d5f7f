"""Tasks and flags as schemas of pydantic: they check the keys of playbooks, and say what is wrong with a value.

Only playbooks and values that are wrong import this module."""

from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from ipexctl.model.tasks import Fields, Flag
from ipexctl.model.text import read_seconds

_SECONDS = BeforeValidator(read_seconds, json_schema_input_type=float | str)
_CONFIG = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


@cache
def make_schema(model: type[Fields]) -> type[BaseModel]:
    """Returns the schema of a task or of flags; unknown keys are errors."""
    hints = get_type_hints(model)
    schemas: dict[str, Any] = {}
    for each in (each for each in fields(model) if each.name not in model.left_out):
        flag: Flag = each.metadata["flag"]
        bounds = {name: getattr(flag, name) for name in ("ge", "gt", "le", "min_length", "pattern")}
        given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
        given |= {"alias": flag.alias} if flag.alias else {}
        given |= {"default_factory": each.default_factory} if each.default_factory is not MISSING else {}
        given |= {"default": each.default} if each.default is not MISSING else {}
        kind = Annotated[hints[each.name], _SECONDS] if flag.is_span(hints[each.name]) else hints[each.name]
        schemas[each.name] = (kind, Field(description=flag.help, **given))
    schema: type[BaseModel] = create_model(model.__name__, __config__=_CONFIG, __doc__=model.__doc__, **schemas)
    return schema
