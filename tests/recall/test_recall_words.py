import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import values
from quire.recall.document import Query, ask, entry_words, in_first_person, meant_dates, speech
from quire.recall.languages import FUNCTION_WORDS, lookups, readable, stems, terms, tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("She bought two hats", "bought two hat"),
        ("Where's order #W2378156?", "order w2378156"),
        ("OPENROUTER_API_KEY=sk-or-v1", "openrout api key sk v1 =openrouter_api_key =sk-or-v1"),
        ("readFile(HTMLParser)", "read file html parser =readfile =htmlparser"),
        (
            "src/tool-use/app_main.py",
            "src tool use app main py =app_main =tool-use =app_main.py =src/tool-use/app_main.py",
        ),
        ("__init__(self._remove) ____", "init self remov =__init__ =_remove =self._remove"),
        ("after all, not before May", "after all not befor may"),
        ("Die Häuser in der Straße", "haus strass ~hauser ~strasse"),
        ("Straße", "strass ~strasse"),
        ("Où sont les élèves ?", "elev ~eleves"),
        ("Где лежат книги?", "лежат книг ~книги"),
        ("东京都", "东京 京都 =东 =京 =都"),
        ("x東y", "x y =東"),
        ("हिन्दी", "हिन्द"),
        # A number beside letters, figures in groups, and what a hash is called by.
        ("flight LH1234", "flight lh1234 ~lh ~1234"),
        ("1,200 of 1.500.000", "1 200 1 500 000 ~1200 ~1500000 =1.500.000"),
        ("Call +49 151 2345-6789", "call 49 151 2345 6789 ~4915123456789 =2345-6789"),
        ("192.168.178.1", "192 168 178 1 =192.168.178.1"),
        ("commit 9fb24e0c1d22", "commit 9fb24e0 =9fb24e0c1d22"),
        ("https://github.com/a/b", "https github com b =github.com =https://github.com/a/b"),
        ("", ""),
    ],
)
def test_searched_words_of(text: str, words: str) -> None:
    assert " ".join(terms(text)) == words


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("Wo ist die Kündigung geblieben, die wir von der Bank haben?", "kundigung"),
        ("Les élèves sont dans la classe", "élève"),
        ("Где мои ключи?", "ключ"),
        ("我有一只猫", "猫"),
        ("call readFile now", "readfile"),
        ("it stands in src/app/main.py", "main.py"),
        # Particles are written to the word.
        ("여동생은 리스본으로 이사했어요", "여동생이"),
        # Their grammar is that of several languages, their letters that of one.
        ("Inés compró bicicletas en Cádiz", "bicicletas"),
        ("Lucía compró dos bicicletas en León", "la bicicleta en la que fue"),
        # Nothing tells them from a neighbour's language.
        ("Sofia comprou duas bicicletas em Lisboa", "onde está a bicicleta?"),
        ("Matteo ha comprato tre sedie a Pisa", "dove sono le sedie di lui?"),
        ("Quante sedie ha comprato?", "dove è la sedia che ha?"),
        # Stemmers know words by their accents.
        ("Ömer bir lamba aldı", "lambaları nerede almıştı?"),
        ("Bożena kupiła książkę", "gdzie są książki?"),
    ],
)
def test_a_question_shares_words_with_what_it_asks_for(said: str, asked: str) -> None:
    assert lookups(said) & lookups(asked, is_query=True)


@pytest.mark.parametrize("text", ["(no output)", "José bought a café", "var min = sys.path", "Müller's report on Zoë"])
def test_a_foreign_name_or_word_leaves_a_text_to_be_found_in_english(text: str) -> None:
    english = [word for word in tokens(text) if word not in FUNCTION_WORDS["english"]]
    assert lookups(text).issuperset(stems(english))


@given(st.text())
def test_words_are_folded_and_hold_no_space(text: str) -> None:
    for token in [*tokens(text), *terms(text), *terms(text, is_query=True)]:
        assert token
        assert token.split() == [token]


@given(st.text(alphabet="abc ABC'.?", max_size=40).map(str.lower))
def test_what_stands_around_words_changes_nothing(text: str) -> None:
    assert terms(text) == terms(f"({text})")


def test_the_script_that_the_model_reads_is_latin() -> None:
    assert [readable(text) for text in ("", "a hat", "Straße", "東京 is old and far", "東京に行った", "Где?")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "asks", "person", "times"),
    [
        ("When did you go?", True, 1 / 3, 0),
        ("I went yesterday with my son.", False, 3 / 4, 1),
        ("Nice! ", False, 1 / 2, 0),
        ("last week, last month, last year", False, 1 / 2, 2),
    ],
)
def test_speech_of(text: str, asks: bool, person: float, times: int) -> None:
    said = speech(text)
    assert (said.asks, said.person, said.times) == (asks, pytest.approx(person), times)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("I saw Rome.", 1),
        ('I loved reading "Charlotte\'s Web" as a kid.', 2),
        ("We went to Rome and Paris and Lyon.", 2),
        ("Rome is old. It is far. Yes! Go?", 0),
        ("Hey Ann! Thanks, Bob. That is kind of you, Ann!", 0),
        ("So I went, and I'm back since Monday, in May.", 0),
        ("i saw rome", 0),
        ("昨日 東京 に 行った", 0),
    ],
)
def test_names_are_capitals_inside_a_sentence_but_not_whom_one_speaks_to(text: str, names: int) -> None:
    assert speech(text).names == names


@given(st.text(alphabet="aB ,.!'\n", max_size=40))
def test_without_capitals_nothing_is_named(text: str) -> None:
    assert speech(text.lower()).names == 0
    assert 0 <= speech(text).names <= 2


PEOPLE = {"ann": 0, "bob": 1}


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("What did Ann eat?", 0),
        ("What does Bob think of Ann's decision?", 1),
        ("What did Ann's friend Bob say?", 1),
        ("Where did Ann and Bob meet?", -1),
        ("Did Ann tell Ann?", 0),
        ("What happened?", -1),
    ],
)
def test_whom_a_query_is_about(text: str, subject: int) -> None:
    assert ask(Query(text), PEOPLE).subject == subject


def test_a_query_is_compared_as_the_person_named_would_say_it() -> None:
    assert (
        in_first_person("What did Ann’s son and Bob eat at Carl's?", PEOPLE) == "What did my son and I eat at Carl's?"
    )


def test_words_of_the_turn_before_count_less_and_never_twice() -> None:
    asked = ask(Query("the red hat", earlier="which hat shop"), {})
    weights = dict(asked.words)
    assert weights["hat"] == weights["red"] == weights["=red"] == 1.0
    assert 0 < weights["hat shop"] < weights["shop"] < weights["red hat"] < 1
    assert len(weights) == len(asked.words)


@pytest.mark.parametrize("text", ["When was it?", "How long did it take?", "On which day?", "what year was it"])
def test_a_question_for_a_time_is_noticed(text: str) -> None:
    assert ask(Query(text), {}).when
    assert not ask(Query("Where " + text), {}).when


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("What books has Ann read?", True),
        ("Which  classical musicians does she like?", True),
        ("In which country was it?", True),
        ("Which of her favourite songs is it?", True),
        ("what's the name of his dog?", True),
        ("What did the team do?", False),
        ("What has Ann's band played?", False),
        ("What bookshelf is it?", False),
        ("Did she tell you what book it was?", False),
        ("I read a book", False),
    ],
)
def test_a_question_for_something_with_a_name_is_noticed(text: str, name: bool) -> None:
    assert ask(Query(text), PEOPLE).name is name


@given(st.text(alphabet="wWhat sich'?\n", max_size=60))
def test_what_a_query_asks_for_depends_on_neither_case_nor_space_around_it(text: str) -> None:
    one, other = ask(Query(text), {}), ask(Query(f"  {text.upper()} "), {})
    assert (one.when, one.name) == (other.when, other.name)


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("I went yesterday", ["7 May 2023"]),
        ("See you tomorrow, or next week", ["9 May 2023", "May 2023"]),
        ("Last month and LAST MONTH", ["April 2023"]),
        ("It was 6 months ago", ["November 2022"]),
        ("two years ago, next year", ["2021", "2024"]),
        ("three days ago", ["5 May 2023"]),
        # It was said on a Monday.
        ("last Friday, last Monday, next friday", ["5 May 2023", "1 May 2023", "12 May 2023"]),
        ("this monday, this friday, next monday", ["8 May 2023", "12 May 2023", "15 May 2023"]),
        ("Gestern war Markt.", ["7 May 2023"]),
        ("Avant-hier, marché. Ce matin aussi.", ["6 May 2023"]),
        ("the day before yesterday, ten days ago, this month", ["6 May 2023", "28 April 2023", "May 2023"]),
        ("我昨天去了", ["7 May 2023"]),
        ("the last one", []),
    ],
)
def test_relative_dates_are_meant_from_the_day_they_were_said(text: str, dates: list[str]) -> None:
    assert meant_dates(text, 1683554160000) == dates
    assert meant_dates(text, None) == meant_dates(text, -5) == []


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("due 2026-03-14, sent 2026-03-14T10:20:00Z", ["14 March 2026"]),
        ("14.03.2026 or 14.3.2026.", ["14 March 2026"]),
        ("14/3/2026, 3/14/26", ["14 March 2026"]),
        ("in 2026-03", ["March 2026"]),
        ("会议改到2026年9月18日。", ["18 September 2026"]),
        # Nobody knows the day of the first; the others are none.
        ("3/4/2026 2026-13-01 1.2.2026.7 v2026-03-14 a/2026-03-14/b 2026-03-14.5 31.20.2026 2026-0", []),
    ],
)
def test_a_date_in_figures_is_searched_in_words(text: str, dates: list[str]) -> None:
    assert meant_dates(text, None) == meant_dates(text, 252_999_999_999_999) == dates


@pytest.mark.parametrize(
    "asked", ["2026-03-14", "14.03.2026", "14/3/2026", "3/14/26", "March 14th, 2026", "14th of March 2026"]
)
def test_a_date_is_asked_for_in_any_of_its_forms(asked: str) -> None:
    words, plain = (dict(ask(Query(f"What was on {day}?"), {}).words) for day in (asked, "14 March 2026"))
    assert {word for word, weight in words.items() if weight == 1} >= {
        word for word, weight in plain.items() if weight == 1
    }
    # How else a text may say it helps, and is no part of what must be found.
    assert words["=2026-03-14"] == words["14th"] == 0.25
    assert dict(ask(Query("am 14. März 2026"), {}).words).items() >= {"marz": 1.0, "march": 0.25}.items()
    assert dict(ask(Query("+49 151 2345-6789"), {}).words).items() >= {"6789": 1.0, "4915123456789": 0.25}.items()


@pytest.mark.parametrize(
    ("asked", "words"),
    [("台灯怎么了？", ["台灯"]), ("合同什么时候到期", ["合同", "到期"]), ("荷物はどこですか？", ["荷物"])],
)
def test_what_only_asks_is_no_word_of_a_query_in_scripts_without_spaces(asked: str, words: list[str]) -> None:
    assert [word for word, weight in ask(Query(asked), {}).words if weight == 1 and word[0] != "="] == sorted(words)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("What was it Yesterday?", "What was it 7 May 2023?"),
        ("two days ago", "6 May 2023"),
        ("我昨天去了", "我 7 May 2023 去了"),
        ("what was last month?", "what was April 2023?"),
        ("1,200 euros", "1200 euros"),
        ("on 1.500.000", "on 1500000"),
        ("sales 2019 2020 2021", "2021 of sales, 2020 to 2019"),
        ("rooms 101 102-103", "102 and 103 rooms or 101"),
    ],
)
def test_a_relative_date_and_figures_in_groups_are_asked_for_as_what_they_mean(asked: str, meant: str) -> None:
    words, plain = (dict(ask(Query(text, at=1683554160000), {}).words) for text in (asked, meant))
    assert words.items() >= {word: weight for word, weight in plain.items() if weight == 1}.items()


def test_a_week_is_asked_for_by_its_days() -> None:
    words = dict(ask(Query("last week", at=1683554160000), {}).words)
    assert words.items() >= {"may": 1.0, "2023": 1.0, **{f"{day} may": 0.25 for day in range(1, 8)}}.items()
    assert "8 may" not in words


def test_a_relative_date_is_found_by_the_day_it_means() -> None:
    entry = values.user("We adopted the puppy last month", at=1683554160000)
    assert {"april", "2023"} <= set(entry_words(entry).words.split())
