"""Records (breadcrumbs): stored documents, how a model sees them, and the context built from them."""

from quire.records.builder import Builder
from quire.records.carry import Carried, carry_out
from quire.records.catalog import catalog, keep_catalog, registered
from quire.records.config import Config, Formatting, Output, Source, config
from quire.records.hints import apply_hints
from quire.records.hit import Hit
from quire.records.limits import Limits
from quire.records.output import Built
from quire.records.react import Reaction, configured, react
from quire.records.record import Record, View, draft, view
from quire.records.reply import AgentReply, ToolRequest, parse_reply
from quire.records.selector import Match, Selector
from quire.records.store import Records
from quire.records.tables import TABLES, records_hook

__all__ = [
    "TABLES",
    "AgentReply",
    "Builder",
    "Built",
    "Carried",
    "Config",
    "Formatting",
    "Hit",
    "Limits",
    "Match",
    "Output",
    "Reaction",
    "Record",
    "Records",
    "Selector",
    "Source",
    "ToolRequest",
    "View",
    "apply_hints",
    "carry_out",
    "catalog",
    "config",
    "configured",
    "draft",
    "keep_catalog",
    "parse_reply",
    "react",
    "records_hook",
    "registered",
    "view",
]
