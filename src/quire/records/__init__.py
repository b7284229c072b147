"""Records (breadcrumbs): stored documents, how a model sees them, and the context built from them."""

from quire.records.catalog import catalog, keep_catalog, registered
from quire.records.hints import apply_hints
from quire.records.limits import Limits
from quire.records.record import Record, View, view
from quire.records.reply import AgentReply, ToolRequest, parse_reply
from quire.records.selector import Match, Selector
from quire.records.store import Records
from quire.records.tables import TABLES

__all__ = [
    "TABLES",
    "AgentReply",
    "Limits",
    "Match",
    "Record",
    "Records",
    "Selector",
    "ToolRequest",
    "View",
    "apply_hints",
    "catalog",
    "keep_catalog",
    "parse_reply",
    "registered",
    "view",
]
