"""One word, one meaning: what of the table in docs/design.md can be held is held here."""

import ast
import re

import click
import pytest

from conftest import ROOT, source_nodes, source_trees
from quire.cli.main import quire
from quire.providers.models import providers
from quire.providers.wires import FORMATS

pytestmark = pytest.mark.xdist_group("source")
SRC = ROOT / "src" / "quire"
# Words for ideas that have a better one (docs/design.md), where nobody else fixed them: as names in the code.
RIDDLES = frozenset(
    (
        "spots places lives keeper vigil told said seen own settle aside kin manner sheet moved absent "
        "exchange tail when write walk fold sealing speech standing claim spending question culprits reach "
        "shown"
    ).split()
)


def commands(command: click.Command, name: str = "quire") -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(name, command)]
    inner = [
        (sub, command.get_command(click.Context(command), sub)) for sub in command.list_commands(click.Context(command))
    ]
    return [(name, command), *(pair for sub, found in inner if found for pair in commands(found, f"{name} {sub}"))]


def test_modules_are_named_after_what_they_hold() -> None:
    """`write` is what a wire's folder calls its writer."""
    riddles = [path.relative_to(SRC) for path in SRC.rglob("*.py") if path.stem in RIDDLES]
    assert [str(path) for path in riddles if path.parts[:2] != ("providers", "wires")] == []


# Where a provider or a format is still told by its name, and why a value of its wire or its row would not do.
BY_NAME = {
    "archive/request_logs.py": "a log's own word for a format",
    "archive/agent_clients.py": "files of other programs: what a file holds tells its format",
    "archive/stored_conversations.py": "files of other programs: what a file holds tells its format",
    "archive/stored_turns.py": "the Responses API takes thinking only with its signature",
    "assemble/messages.py": "whose thinking it was stands in the entry, by name",
    "fitting.py": "whose objects messages are stands in the name of their package",
    "providers/__init__.py": "what a tool looks like tells its format",
    "server/mend_rules.py": "a repair is made in the way of each format",
}


def test_providers_are_told_apart_by_their_wires_and_rows_and_not_by_their_names() -> None:
    names = {*FORMATS, *providers(), "local"}
    compared = set[str]()
    for path, nodes in source_nodes().items():
        for node in nodes:
            # Caches have engines, some of which are called like their provider.
            if isinstance(node, ast.Compare) and getattr(node.left, "attr", "") != "engine":
                given = (
                    node.comparators if isinstance(node.ops[0], ast.In | ast.NotIn) else [node.left, *node.comparators]
                )
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "startswith":
                given = node.args
            else:
                continue
            listed = [one for some in given for one in getattr(some, "elts", [some])]
            if any(isinstance(one, ast.Constant) and one.value in names for one in listed):
                compared.add(path.relative_to(SRC).as_posix())
    assert {path for path in compared if not path.startswith("providers/wires/")} == set(BY_NAME)


def test_a_class_name_stands_once() -> None:
    seen: dict[str, str] = {}
    twice = []
    for path, tree in source_trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if node.name in seen:
                    twice.append((node.name, seen[node.name], str(path.relative_to(SRC))))
                seen[node.name] = str(path.relative_to(SRC))
    assert twice == []


# Names that leave the thing out: of a variable they tell what happened to it, or that there is one.
STAND_INS = frozenset({"each", "one", "told", "said", "gone"})
# Where a variable is called so all the same, and why.
STANDING_IN = {
    ("send/note_search.py", "each"): "a parameter that callers name: so many characters in all, and for each"
}


def test_variables_are_named_after_what_they_hold() -> None:
    """Fields of a class may stand in logs and in code of others."""
    bound = set[tuple[str, str]]()
    for path, nodes in source_nodes().items():
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        fields = {line.target for node in classes for line in node.body if isinstance(line, ast.AnnAssign)}
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler):
                name = node.name or ""
            else:
                continue
            if name in STAND_INS:
                bound.add((path.relative_to(SRC).as_posix(), name))
    assert bound == set(STANDING_IN)


# A function is called by what it does, a value by what it is: a participle alone leaves the thing out.
IRREGULAR = frozenset(
    (
        "told said kept gone seen known given found written sent shown held left made taken built met meant drawn "
        "lost brought chosen broken spoken spent heard taught paid laid done"
    ).split()
)
# Names that others import or call, and claims, which are true or false of a thing.
PARTICIPLES = frozenset(
    (
        "Audited Built Found Given Loaded Mended Placed Predicted Received Recorded Refused Resumed Saved Served Stopped "
        "Unchecked Watched _changed _connected answered applied attached awaited built changed checked closed configured "
        "connected counted decorated disconnected done expired installed interrupted known linked locked malformed marked "
        "missed moved noted packed passed pinned planned recalled recognised registered replied reported retrieved returned "
        "scaled sent served shared spoken tagged uncalibrated unchecked unfinished untouched watched"
    ).split()
)


def test_functions_and_classes_are_named_after_what_they_do_or_hold() -> None:
    defined = {
        node.name
        for nodes in source_nodes().values()
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    assert {name for name in defined if is_participle(name)} == PARTICIPLES


def is_participle(name: str) -> bool:
    regular = re.fullmatch(r"_*[A-Z]?[a-z]+ed", name) and not name.lower().endswith(("feed", "embed", "seed"))
    return bool(regular) or name.strip("_").lower() in IRREGULAR


# Fields that stand in logs, checkpoints, rows of data, JSON and schemas, or that others read.
PARTICIPLE_FIELDS = frozenset(
    (
        "AuditTotals.lost AuditTotals.unpriced AuditTotals.written Audited.skipped CacheEvent.predicted "
        "CacheEvent.reported Calibration.reported Chat.created Checkpoint.checked ClientSetting.documented "
        "ClientSummary.kept Comparison.added Context.pinned CountEvent.expected CountEvent.reported Edit.freed "
        "Fields.required IndexReport.embedded IndexReport.worded IndexUpdate.changed IndexUpdate.removed "
        "Joining.known KeptWindow.pinned Loaded.known Mended.refused Partial.unfinished PolicyOutcome.grounded "
        "PolicyOutcome.kept Rebase.freed Rebase.pinned RebaseNote.freed RecordedThread.needed RequestColumn.asked "
        "RequestColumn.refused RequestColumn.written Saved.kept SegmentView.made SentCall.given Served.ended "
        "SourceFile.given Spending.unpriced Tool.shown Usage.charged UsageForm.written UserMessage.recalled "
        "Verdict.lost Whereabouts.entered Whereabouts.recalled Wire.diagnosed _Epoch.sent _Epoch.used "
        "_Fold.attached _Fold.carried _Fold.fed _Fold.recorded _Pending.attached _Pending.interrupted"
    ).split()
)


def test_fields_are_named_after_what_they_hold() -> None:
    """A claim, which is true or false of the thing that has it, may be a participle; so may what its class is called."""
    fields = {
        f"{node.name}.{line.target.id}"
        for nodes in source_nodes().values()
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if is_participle(line.target.id)
        if not re.search(rf"^bool\b|\b{line.target.id.capitalize()}\b", ast.unparse(line.annotation))
    }
    assert fields == PARTICIPLE_FIELDS


@pytest.mark.parametrize(
    ("name", "command"), commands(quire), ids=lambda value: value if isinstance(value, str) else ""
)
def test_help_speaks_the_words_of_the_design(name: str, command: click.Command) -> None:
    """A rebase is a rebase and a mark a mark in every help text; layer ids of the data are for data."""
    text = command.get_help(click.Context(command, info_name=name))
    assert not re.search(
        r"\b(breakpoints?|targets?|TARGET|compact(?:ion)?|L2_PREVIOUS|L4_STRIP|breadcrumbs?)\b", text
    ), text
