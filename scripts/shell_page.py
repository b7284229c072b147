"""What `--help` prints for every command, as a page: python scripts/shell_page.py >> shell.md"""

from __future__ import annotations

from collections.abc import Iterator

import click

from quire.cli.main import quire


def commands(command: click.Command, above: click.Context | None, name: str) -> Iterator[click.Context]:
    """A command and all below it, in the order of their names, each as the shell meets it."""
    here = click.Context(command, above, name, max_content_width=78, terminal_width=78)
    yield here
    if isinstance(command, click.Group):
        for below in sorted(command.list_commands(here)):
            found = command.get_command(here, below)
            if found is not None:
                yield from commands(found, here, below)


if __name__ == "__main__":
    for each in commands(quire, None, "quire"):
        print(f"## {each.command_path}\n\n```text\n{each.get_help()}\n```\n")
