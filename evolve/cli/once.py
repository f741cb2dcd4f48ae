"""Options that take one value are given once: of two values, neither is dropped without a word."""

from __future__ import annotations

import click


class OnceGroup(click.Group):
    """A group whose commands refuse a second value for an option that takes one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` name, and its own arguments. Raises UsageError for an option that is given twice."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            check_once(click.Context(command, ctx, name, **command.context_settings), rest)
        return name, command, rest


def check_once(context: click.Context, args: list[str]) -> None:
    """Raises UsageError if `args` of the context's command give an option twice that takes one value.

    Flags may be repeated, because that changes nothing.
    """
    _, _, order = context.command.make_parser(context).parse_args(list(args))
    seen = set[str]()
    for parameter in order:
        if not isinstance(parameter, click.Option) or parameter.multiple or parameter.is_flag or parameter.count:
            continue
        if parameter.name in seen:
            raise click.UsageError(f"{parameter.opts[0]} is given twice: it takes one value, give it once", context)
        seen.add(str(parameter.name))
