"""Query blocks answered as Dataview's own documentation answers them."""

import contextlib
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import FormatError, NotFound
from quire.notes.dataview import evaluate
from quire.notes.dataview_values import FUNCTIONS as FUNCTION_TABLE
from quire.notes.note import read_note
from quire.notes.vault import Vault

TODAY = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)


def day(ahead: int) -> str:
    return (TODAY + timedelta(ahead)).strftime("%Y-%m-%d")


NOTES = {
    "Games/League of Legends.md": '---\ntags: [games/mobas]\ntype: game\nstarted: 2021-05-16\n---\n[rating:: 4] [length:: 20h]\n',
    "Games/Pillars of Eternity 2.md": '---\ntags: [games/crpg]\ntype: game\nstarted: 2022-04-21\nfinished: 2022-11-23\nsteamid: 560130\n---\n**Rating**:: 9\nLength:: 10h30m\n',
    "Games/finished/Stardew Valley.md": '---\ntags: [games/simulation]\ntype: game\nstarted: 2021-04-04\nfinished: 2021-08-28\n---\nRating:: 9.5\n(length:: 15h)\nSee [[League of Legends|LoL]].',
    "Dashboard.md": "---\ntype: moc\naliases: [Home, Start page]\n---\n[[Git Basics]] [[Stardew Valley]]\n```\n- [ ] no task: code\n```\n",
    "Coding/Git Basics.md": '---\ntype: knowledge\nauthors: ["Steg, L.", "Robert Lamb"]\nepisode_metadata:\n  previous: "S01E02"\ndue: DAY\ncontacts: ["[[Mr. L]]"]\n---\n[[Git Basics]]\n'.replace("DAY", day(-3)),
    "People/Mr. L.md": "---\nage: 40\n---\n",
    "dailys/2022-07-30.md": "# Next Actions\n- [ ] Finish the math assignment\n\t- [x] Finish Paper 1 [due:: 2022-08-13]\n\t- [ ] Read again through chapter 3 [due:: 2022-09-01]\n- [x] Hand in physics ✅2022-08-22\n",
    "dailys/2022-09-21.md": "- [ ] Buy new shoes #shopping\n- [-] Mail Paul\n- quote [author:: Ann Surname]\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Vault:
    root = tmp_path_factory.mktemp("vault")
    for path, text in NOTES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        os.utime(root / path, (1_600_000_000, 1_600_000_000))
    os.utime(root / "Dashboard.md")
    return Vault(root)


def answer(vault: Vault, query: str, path: str = "Dashboard.md") -> str:
    return vault.answer(path, query)


TASKS = ["- [ ] Finish the math assignment", "    - [x] Finish Paper 1 [due:: 2022-08-13]", "    - [ ] Read again through chapter 3 [due:: 2022-09-01]"]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "lines"),
    [
        ("LIST FROM #games/mobas OR #games/crpg", ["- [[League of Legends]]", "- [[Pillars of Eternity 2]]"]),
        ("LIST file.folder WHERE type = \"moc\" OR type = \"knowledge\"", ["- [[Git Basics]]: Coding", "- [[Dashboard]]:"]),
        ('LIST "File Path: " + file.folder + " _(started: " + started + ")_" FROM "Games" SORT started LIMIT 1', ["- [[Stardew Valley]]: File Path: Games/finished _(started: 2021-04-04)_"]),
        ("LIST WHERE type GROUP BY type", ["- game", "- knowledge", "- moc"]),
        ("LIST rows.file.link FROM \"Games\" or #none GROUP BY type", ["- game:", "    - [[League of Legends]]", "    - [[Pillars of Eternity 2]]", "    - [[Stardew Valley]]"]),
        ('LIST WITHOUT ID length(rows) + " pages of type " + key WHERE type GROUP BY type', ["- 3 pages of type game", "- 1 pages of type knowledge", "- 1 pages of type moc"]),
        ("LIST WITHOUT ID type WHERE steamid", ["- game"]),
        ('TABLE started, file.folder AS Path, file.etags AS "File Tags" FROM #games LIMIT 1', ["| File | started | Path | File Tags |", "| --- | --- | --- | --- |", "| [[League of Legends]] | 2021-05-16 | Games | #games/mobas |"]),
        ('TABLE default(finished, date(today)) - started AS "Played for" FROM #games WHERE finished', ["| File | Played for |", "| --- | --- |", "| [[Pillars of Eternity 2]] | 7 months, 2 days |", "| [[Stardew Valley]] | 4 months, 3 weeks, 3 days |"]),
        ("TABLE WITHOUT ID steamid, file.etags FROM #games SORT rating LIMIT 1", ["| steamid | file.etags |", "| --- | --- |", "| - | #games/mobas |"]),
        ("TABLE WITHOUT ID length AS \"Length\", rating FROM \"Games\" SORT rating DESC", ["| Length | rating |", "| --- | --- |", "| 15 hours | 9.5 |", "| 10 hours, 30 minutes | 9 |", "| 20 hours | 4 |"]),
        ("TASK", [f"{TASKS[0]} ([[2022-07-30]])", *TASKS[1:], "- [x] Hand in physics ✅2022-08-22 ([[2022-07-30]])", "- [ ] Buy new shoes #shopping ([[2022-09-21]])", "- [-] Mail Paul ([[2022-09-21]])"]),
        ("TASK WHERE !completed", [f"{TASKS[0]} ([[2022-07-30]])", *TASKS[1:], "- [ ] Buy new shoes #shopping ([[2022-09-21]])", "- [-] Mail Paul ([[2022-09-21]])"]),
        ("TASK WHERE !completed AND contains(tags, \"#shopping\")", ["- [ ] Buy new shoes #shopping ([[2022-09-21]])"]),
        ("TASK WHERE !checked GROUP BY file.link", ["[[2022-07-30]] (1)", "", *TASKS, "", "[[2022-09-21]] (1)", "", "- [ ] Buy new shoes #shopping"]),
        ("TASK WHERE due > date(2022-08-20)", ["- [ ] Read again through chapter 3 [due:: 2022-09-01] ([[2022-07-30]])"]),
        ('TASK WHERE completion = date("2022-08-22")', ["- [x] Hand in physics ✅2022-08-22 ([[2022-07-30]])"]),
        ('task where meta(section).subpath = "Next Actions" and completed and !due', ["- [x] Hand in physics ✅2022-08-22 ([[2022-07-30]])"]),
        ("TASK WHERE !completed SORT created ASC LIMIT 1 GROUP BY file.link SORT rows.file.ctime ASC", ["[[2022-07-30]] (1)", "", *TASKS]),
        ("TASK WHERE checked GROUP BY file.name AS n GROUP BY true", ["true (3)", "", "2022-07-30 (2)", "", "- [x] Finish Paper 1 [due:: 2022-08-13]", "- [x] Hand in physics ✅2022-08-22", "", "2022-09-21 (1)", "", "- [-] Mail Paul"]),
        ("LIST WHERE any(file.tasks, (t) => !t.fullyCompleted)", ["- [[2022-07-30]]", "- [[2022-09-21]]"]),
        ('TABLE L.text AS "My lists" FROM "dailys" FLATTEN file.lists AS L WHERE contains(L.author, "Surname")', ["| File | My lists |", "| --- | --- |", "| [[2022-09-21]] | quote [author:: Ann Surname] |"]),
        ("TABLE authors WHERE authors FLATTEN authors", ["| File | authors |", "| --- | --- |", "| [[Git Basics]] | Steg, L. |", "| [[Git Basics]] | Robert Lamb |"]),
        ("LIST link(c).age WHERE typeof(contacts) = \"array\" AND contains(contacts, [[Mr. L]]) FLATTEN contacts as c SORT link(c).age ASC", ["- [[Git Basics]]: 40"]),
        ("LIST file.day WHERE file.day SORT file.day DESC", ["- [[2022-09-21]]: 2022-09-21", "- [[2022-07-30]]: 2022-07-30"]),
        ("LIST WHERE file.day.year = 2022 AND file.day.month = 9", ["- [[2022-09-21]]"]),
        ("LIST WHERE file.mtime >= date(today) - dur(1 day)", ["- [[Dashboard]]"]),
        ("LIST WHERE due AND due < date(today)", ["- [[Git Basics]]"]),
        ("LIST WHERE finished - started > dur(6 months)", ["- [[Pillars of Eternity 2]]"]),
        ('LIST WHERE contains(file.name, "Git")', ["- [[Git Basics]]"]),
        ("LIST FROM [[Stardew Valley]]", ["- [[Dashboard]]"]),
        ("LIST FROM outgoing([[]]) AND -\"Games\"", ["- [[Git Basics]]"]),
        ("LIST FROM outgoing([[Dashboard]])", ["- [[Git Basics]]", "- [[Stardew Valley]]"]),
        ('LIST FROM (#games AND "Games/finished") OR ("Coding" AND outgoing([[Dashboard]]))', ["- [[Git Basics]]", "- [[Stardew Valley]]"]),
        ("LIST WHERE contains(file.outlinks, [[Stardew Valley]])", ["- [[Dashboard]]"]),
        ("LIST file.inlinks WHERE file.name = \"League of Legends\"", ["- [[League of Legends]]:", "    - [[Stardew Valley]]"]),
        ("LIST WHERE length(file.inlinks) > 1", ["- [[Git Basics]]"]),
        ("LIST WHERE contains(file.inlinks, this.file.link) AND type = [[Stardew Valley]].type", ["- [[Stardew Valley]]"]),
        ('LIST file.aliases WHERE contains(file.aliases, "Home")', ["- [[Dashboard]]:", "    - Home", "    - Start page"]),
        ('LIST WHERE episode_metadata["previous"] = "S01E02" AND row["type"] = "knowledge"', ["- [[Git Basics]]"]),
        ("LIST WHERE rating > 99", ["(no notes match)"]), ("TASK LIMIT 0", ["(no tasks match)"]),
        ("GROUP everything", ["(this query was not understood: a query begins with LIST, TABLE or TASK, not 'group')"]),
        ("LIST GROUP x", ["(this query was not understood: 'x' stands where 'by' was expected)"]),
        ("LIST FROM", ["(this query was not understood: the query ends too early)"]),
        ("LIMIT 5", None), ("LIST LIMIT 2 SORT file.name DESC", ["- [[Git Basics]]", "- [[Dashboard]]"]),
        ("CALENDAR file.ctime", None), ("LIST FLATTEN srandom(1) AS r", None), ('LIST FROM csv("x.csv")', None), ("LIST WHERE lower(1, 2, 3)", None),
    ],
)  # fmt: skip
def test_the_documentations_queries(vault: Vault, query: str, lines: list[str] | None) -> None:
    said = answer(vault, query)
    if lines is None:
        assert said.startswith("(this query was not understood: ")
    else:
        assert said.split("\n") == lines


# As the page on functions has them: each line is true.
FUNCTIONS = r"""
lower("YES") = "yes"
lower(["YES", "NO"]) = ["yes", "no"]
replace(["yes", "ree"], "e", "a") = ["yas", "raa"]
object("a", 4, "c", "yes") = { a: 4, c: "yes" }
array("a", "b", "c") = list("a", "b", "c")
date([[2022-07-30]]) = date(2022-07-30)
date("12/31/2022", "MM/dd/yyyy") = date(2022-12-31)
date("210313", "yyMMdd") = date(2021-03-13)
dur("8 minutes, 4 seconds") = dur(8 minutes) + dur(4s)
dur(dur(8 minutes)) = dur(8 min)
dur(1 s, 2 m, 3 h) = dur(1second 2min 3h)
number("18 years") = 18
number(34) = 34
number("hmm") = null
string(18) = "18"
string(dur(8 hours)) = "8 hours"
typeof(8) = "number"
typeof([1, 2, 3]) = "array"
typeof({ a: 1, b: 2 }) = "object"
typeof(date(2020-01-01)) = "date"
typeof(dur(8 minutes)) = "duration"
round(16.555555) = 17
round(16.555555, 2) = 16.56
trunc(-93.33333) = -93
floor(-0.837764) = -1
ceil(12.937) = 13
min([1, 2, 3]) = 1
min("a", "ab", "abc") = "a"
max(1, 2, 3) = 3
sum([1, 2, 3]) = 6
sum([]) = null
sum(nonnull([null, 1, 8])) = 9
product(nonnull([null, 1, 2, 4])) = 8
reduce([100, 20, 3], "-") = 77
reduce([200, 10, 2], "/") = 10
reduce(["⭐", 3], "*") = "⭐⭐⭐"
average(nonnull([null, 1, 2])) = 1.5
minby([1, 2, 3], (k) => 0 - k) = 3
maxby([1, 2, 3], (k) => k) = 3
contains("Hello", "Lo") = false
icontains("Hello", "Lo") = true
econtains(["this","is","example"], "ex") = false
econtains(["this","is","example"], "is") = true
contains(file, "ctime") = true
contains(list(), 1) = false
containsword("Hello there chaps!", "chap") = false
containsword(["Word", "Words in word"], "WORD") = [true, true]
extract(file, "size") = object("size", file.size)
sort(list("a", "b", "aa")) = list("a", "aa", "b")
reverse(list(1, 2, 3)) = list(3, 2, 1)
length(object("hello", 1, "goodbye", 2)) = 2
all([1, 2, 3], (x) => x > 1) = false
all(true, true, true) = true
any(list(1, 2, 3), (x) => x > 2) = true
none([]) = true
none(["Apple", "Pi", "Banana"], (x) => startswith(x, "A")) = false
join(list(1, 2, 3), " ") = "1 2 3"
join(6) = "6"
filter([1, 2, 3], (x) => x >= 2) = [2, 3]
map(["yes", "no"], (x) => x + "?") = ["yes?", "no?"]
flat(list(1, list(21, 22), list(list (311, 312, 313))), 4) = list(1, 21, 22, 311, 312, 313)
slice([1, 2, 3, 4, 5], -2) = [4, 5]
slice(["ant", "bison", "camel", "duck", "elephant"], 0, 2) = ["ant", "bison"]
regextest("\w+", "hello") = true
regexmatch("what", "what's up dog?") = false
regexreplace("Suite 1000", "\d+", "-") = "Suite -"
split("hello there world", " ", 2) = list("hello", "there")
split("hello there world", "(t?here)") = list("hello ", "there", " world")
startswith("path/to/something", "path/") = true
endswith("yes", "ye") = false
padleft("yes", 5, "!") = "!!yes"
padright("hello", 7) = "hello  "
substring("hello", 2, 4) = "ll"
truncate("Hello there!", 8) = "Hello..."
truncate("Hello there!", 10, "!") = "Hello the!"
default(list(1, 2, null), 3) = list(1, 2, 3)
ldefault(list(1, 2, null), 3) = list(1, 2, null)
choice(false, "yes", "no") = "no"
striptime(file.mtime) = file.mday
dateformat(date(2022-01-05T12:18:04),"yyyy-MM-dd") = "2022-01-05"
dateformat(date(2022-01-05T12:18:04),"HH:mm:ss") = "12:18:04"
durationformat(dur("3 days 7 hours 43 seconds"), "ddd'd' hh'h' ss's'") = "003d 07h 43s"
durationformat(dur("365 days 5 hours 49 minutes"), "yyyy ddd hh mm ss") = "0001 000 05 49 00"
durationformat(dur("2000 years"), "M months") = "24000 months"
durationformat(dur("14d"), "s 'seconds'") = "1209600 seconds"
meta([[2021-11-01|Displayed link text]]).display = "Displayed link text"
meta([[My Project#Next Actions]]).subpath = "Next Actions"
meta([[My Project#^9bcbe8]]).type = "block"
list(1, 2, 3)[0] = 1
date(2021-07-14).weekday = 3
dur(2 days).hours = 48
date(eom) > date(som)
date(today) - dur(1 day) = date(yesterday)
date(2024-01-31) + dur(1 month) = date(2024-02-29)
1 + 2 * 3 = 7
"""


@pytest.mark.parametrize("line", FUNCTIONS.strip().split("\n"))
def test_the_documentations_functions(vault: Vault, line: str) -> None:
    assert answer(vault, f'LIST WHERE file.name = "Dashboard" AND ({line})') == "- [[Dashboard]]"


def test_a_note_is_found_by_its_alias_unless_a_file_has_the_name(vault: Vault, tmp_path: Path) -> None:
    assert vault.resolve("[[start page]]") == "Dashboard.md"
    (tmp_path / "a.md").write_text("---\nalias: b\n---\n")
    (tmp_path / "b.md").write_text("")
    assert Vault(tmp_path).resolve("b") == "b.md"


def test_rows_that_are_left_away_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("- [ ] one\n" * 203)
    assert answer(Vault(tmp_path), "TASK", "a.md").endswith("- [ ] one ([[a]])\n(and 3 more)")


VALUES = """rating due l o file file.name file.tasks file.inlinks file.day rows key this row x 1 2.5 "a" [[a]] [[]] null true
date(today) dur(1d) completed text tags children section {a:1} -1 #x""".split()
EXPRESSIONS = st.recursive(
    st.sampled_from(VALUES),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+ - * / % = < >= and or".split()), inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("(x) => {}".format, inner),
        st.builds(lambda name, args: f"{name}({', '.join(args)})", st.sampled_from([*FUNCTION_TABLE, "link"]), st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)  # fmt: skip
STEPS = st.sampled_from(["WHERE {}", "SORT {} DESC", "LIMIT 2", "GROUP BY {}", "FLATTEN {} AS x", "FLATTEN rows"])
QUERIES = st.builds(
    lambda kind, shown, steps: " ".join([kind, shown, *(step.format(one) for step, one in steps)]),
    st.sampled_from(["LIST", "TABLE", "TASK", "LIST WITHOUT ID"]),
    EXPRESSIONS,
    st.lists(st.tuples(STEPS, EXPRESSIONS), max_size=3),
)
ODD = {
    "a.md": '---\ntags: [x]\nrating: 3\ndue: 2024-01-02\nl: [1, b, "[[b]]"]\no: {p: 1}\n---\n# H\n- [ ] t [due:: 2024-02-01]\n  - [x] s\n[[b]] k:: v',
    "b.md": "- [x] d\n- e\n[[a]] [[gone]]",
}


@given(QUERIES | st.text(st.sampled_from('LISTABEFROMWHERE #"[]()=<>!,.-&|1a\n'), max_size=40))
def test_no_query_breaks_the_vault(query: str) -> None:
    notes = [read_note(path, text, 10**18, len(text)) for path, text in ODD.items()]

    def resolve(name: str) -> str:
        if f"{name}.md" not in ODD:
            raise NotFound(name)
        return f"{name}.md"

    with contextlib.suppress(FormatError):
        assert isinstance(evaluate(query, notes, resolve, ODD.__getitem__, "a.md"), str)
