# SPDX-License-Identifier: Apache-2.0
"""Commands whose arguments have the form of 1986: +ID and -ID, options with one dash, lists."""

from __future__ import annotations

import click


class SignedArguments(click.Command):
    """Words like +ID and -ID are arguments. Options of this command that are not: SHORT and --."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {name for one in self.get_params(ctx) for name in one.opts if name[:1] == "-"}
        signed = [
            word
            for word in args
            if word[:1] in ("+", "-") and not word.startswith("--") and word not in options
        ]
        others = [word for word in args if word not in signed]
        return super().parse_args(ctx, [*others, "--", *signed] if signed else others)


class NumberLists(click.Command):
    """An option in `lists` takes all the numbers that follow it: -e 1 3 5."""

    lists: tuple[str, ...] = ("-event", "-events", "-e")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        numbers: list[str] | None = None
        for word in args:
            if numbers is not None and word.isdecimal():
                numbers.append(word)
                joined[-1] = " ".join(numbers)
                continue
            joined.append(word)
            numbers = None
            if word in self.lists:
                numbers = []
                joined.append("")
        return super().parse_args(ctx, joined)
