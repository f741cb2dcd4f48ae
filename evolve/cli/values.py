"""Checks of given option values: an option of one value has one, and no value is empty.

A second value is never dropped silently. An empty value, as from an unset shell variable, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from simulator.common.errors import InputError

NAMING = (click.types.StringParamType, click.Path)  # of values that name something


class StrictGroup(click.Group):
    """A group whose commands refuse empty values, and a second value for an option of one value."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` name, and its arguments, which `check_values` has checked."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            check_values(click.Context(command, ctx, name, **command.context_settings), rest)
        return name, command, rest


def check_values(context: click.Context, args: list[str]) -> None:
    """Raise UsageError if `args` repeat an option of one value, and InputError if a name or file in them is empty."""
    given, _, order = context.command.make_parser(context).parse_args(list(args))
    _check_once(context, order)
    _check_named(given, order)


def _check_once(context: click.Context, order: Sequence[click.Parameter]) -> None:
    """Refuse repeated options of one value. Flags may be repeated, because that changes nothing."""
    seen = set[str]()
    for parameter in order:
        if not isinstance(parameter, click.Option) or parameter.multiple or parameter.is_flag or parameter.count:
            continue
        if parameter.name in seen:
            raise click.UsageError(f"{parameter.opts[0]} is given twice: it takes one value, give it once", context)
        seen.add(str(parameter.name))


def _check_named(given: Mapping[str, object], order: Sequence[click.Parameter]) -> None:
    """Refuse empty values, except for options that check their own values."""
    for parameter in order:
        if not isinstance(parameter.type, NAMING) or (parameter.callback and parameter.nargs == 1):
            continue
        if any(not text.strip() for text in _texts(given.get(str(parameter.name)))):
            what = parameter.metavar or "a value"
            if isinstance(parameter, click.Option):
                name, remedy = parameter.opts[0], f"give {what}{'' if parameter.required else ', or leave it out'}"
            else:
                name, remedy = what, "give a name"
            raise InputError(f"{name} '': names nothing: {remedy}")


def _texts(value: object) -> list[str]:
    """The texts of a parsed value, which may be a list."""
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []
