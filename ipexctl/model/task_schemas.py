"""Tasks and flags as schemas of pydantic: they check the keys of playbooks, and say what is wrong with a value.

Only playbooks and values that are wrong import this module."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from ipexctl.model.errors import UsageError
from ipexctl.model.schema_errors import describe_error
from ipexctl.model.tasks import LARGEST, Fields, Flag
from ipexctl.model.text import read_seconds

T = TypeVar("T", bound=Fields)
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
        if flag.le is None and {int, float} & {hints[each.name], *get_args(hints[each.name])}:
            bounds["le"] = LARGEST
        given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
        given |= {"alias": flag.alias} if flag.alias else {}
        given |= {"default_factory": each.default_factory} if each.default_factory is not MISSING else {}
        given |= {"default": each.default} if each.default is not MISSING else {}
        kind = Annotated[hints[each.name], _SECONDS] if flag.is_span(hints[each.name]) else hints[each.name]
        schemas[each.name] = (kind, Field(description=flag.help, **given))
    schema: type[BaseModel] = create_model(model.__name__, __config__=_CONFIG, __doc__=model.__doc__, **schemas)
    return schema


def check_fields(model: type[T], fields: Mapping[str, object]) -> T:
    """Returns a task or flags with these values, read by its schema. Raises `UsageError` with what is wrong of each."""
    try:
        checked = make_schema(model).model_validate(fields)  # type: ignore[arg-type]  # mypy: a class is no Hashable
        return model(**dict(checked))
    except ValidationError as error:
        reasons = []
        for each in error.errors(include_url=False):
            first, *others = map(str, each["loc"] or [each["input"]])  # a name that is no text has no place
            flag: Flag | None = held.metadata["flag"] if (held := model.__dataclass_fields__.get(first)) else None
            name = flag.metavar or first.upper() if flag and flag.argument else f"--{first.replace('_', '-')}"
            reasons.append(f"{'.'.join([name, *others])} {describe_error(each)}, not {each['input']!r:.80}")
        raise UsageError("the options cannot be used", reasons=reasons) from None
