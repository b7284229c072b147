import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.recall.query import FORMS, FUNCTION_WORDS, Query, ask, content, in_first_person, speech, stem, tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("She bought two hats", ["buy", "2", "hats"]),
        ("Where's order #W2378156?", ["order", "w2378156"]),
        ("OPENROUTER_API_KEY=sk-or-v1-x", ["openrouter", "api", "key", "sk", "v1", "x"]),
        ("after all, not before May", ["after", "all", "not", "before", "may"]),
        ("東京都に", ["東京", "京都", "都に"]),
        ("x東y", ["x", "東", "y"]),
        ("", []),
    ],
)
def test_content_words_of(text: str, words: list[str]) -> None:
    assert content(text) == words


@given(st.text())
def test_tokens_are_lower_case_words_of_the_text(text: str) -> None:
    for token in tokens(text):
        assert token == token.lower()
        assert token in text.lower()
        assert "_" not in token


@given(st.text(alphabet="abc ABC'.?", max_size=40))
def test_case_and_punctuation_around_words_change_nothing(text: str) -> None:
    assert content(text) == content(text.upper()) == content(f"({text})")


def test_forms_lead_to_words_that_are_searched() -> None:
    assert not set(FORMS.values()) & FUNCTION_WORDS - {"do"}
    assert stem(["running", "runs"]) == ["run", "run"]


@pytest.mark.parametrize(
    ("text", "asks", "person", "times"),
    [
        ("When did you go?", True, 1 / 3, 0),
        ("I went yesterday with my son.", False, 3 / 4, 1),
        ("Nice! ", False, 1 / 2, 0),
        ("last week, last month, last year", False, 1 / 2, 2),
    ],
)
def test_manner_of(text: str, asks: bool, person: float, times: int) -> None:
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
    ("text", "subject", "sure"),
    [
        ("What did Ann eat?", 0, True),
        ("What does Bob think of Ann's decision?", 1, False),
        ("What did Ann's friend Bob say?", 1, False),
        ("Where did Ann and Bob meet?", -1, False),
        ("Did Ann tell Ann?", 0, True),
        ("What happened?", -1, False),
    ],
)
def test_whom_a_query_is_about(text: str, subject: int, sure: bool) -> None:
    asked = ask(Query(text), PEOPLE)
    assert (asked.subject, asked.sure) == (subject, sure)


def test_a_query_is_compared_as_the_person_named_would_say_it() -> None:
    assert (
        in_first_person("What did Ann’s son and Bob eat at Carl's?", PEOPLE) == "What did my son and I eat at Carl's?"
    )


def test_words_of_the_turn_before_count_less_and_never_twice() -> None:
    asked = ask(Query("the red hat", earlier="which hat shop"), {})
    weights = {stemmed: weight for _, stemmed, weight in asked.words}
    assert weights["hat"] == weights["red"] == 1.0
    assert 0 < weights["shop"] < 1
    assert len(asked.words) == 3


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


@pytest.mark.parametrize(
    ("text", "several"),
    [
        ("What books has Ann read?", True),
        ("Which old musical instruments does she play?", True),
        ("How many children do they have?", True),
        ("In what ways did it help?", True),
        ("What are her hobbies?", True),
        ("Which people came?", True),
        ("What does Ann do with the boxes?", False),
        ("What pet does she have?", False),
        ("What class is it?", False),
        ("What is Ann's bus called?", False),
        ("Books", False),
    ],
)
def test_a_question_for_several_things_is_noticed(text: str, several: bool) -> None:
    assert ask(Query(text), PEOPLE).several is several


@given(st.text(alphabet="wWhat sich'?\n", max_size=60))
def test_what_a_query_asks_for_depends_on_neither_case_nor_space_around_it(text: str) -> None:
    one, other = ask(Query(text), {}), ask(Query(f"  {text.upper()} "), {})
    assert (one.when, one.name, one.several) == (other.when, other.name, other.several)
