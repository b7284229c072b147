"""Records (breadcrumbs): stored documents, how a model sees them, and the context built from them."""

from quire.records.agent import (
    AgentReply,
    CarriedOut,
    Reaction,
    ToolRequest,
    carry_out,
    catalog,
    configured,
    keep_catalog,
    parse_reply,
    react,
    registered,
)
from quire.records.builder import Builder, BuiltContext
from quire.records.config import Config, Formatting, Match, OutputRecord, RecordSource, Selector, config
from quire.records.find import RecordHit
from quire.records.hints import apply_hints
from quire.records.paths import HintLimits
from quire.records.record import Record, View, draft, view
from quire.records.store import Records

__all__ = [
    "AgentReply", "Builder", "BuiltContext", "CarriedOut", "Config", "Formatting", "HintLimits", "Match",
    "OutputRecord", "Reaction", "Record", "RecordHit", "RecordSource", "Records", "Selector", "ToolRequest",
    "View", "apply_hints", "carry_out", "catalog", "config", "configured", "draft", "keep_catalog",
    "parse_reply", "react", "registered", "view",
]  # fmt: skip
