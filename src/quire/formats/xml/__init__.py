"""`xml`: a window as elements, for models that read tags well; nothing of it is lost."""

from quire.formats.context import Context, project, read, to_json
from quire.formats.xml.parse import parse
from quire.formats.xml.render import render

__all__ = ["Context", "parse", "project", "read", "render", "to_json"]
