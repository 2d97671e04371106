"""The meters of the house have goals (lab/meters.py measures). A goal that is missed names the places."""

from __future__ import annotations

import pytest

from lab import meters


def test_99_of_100_functions_have_at_most_40_lines() -> None:
    sizes = meters.long_functions(meters.package())
    assert meters.percentile([lines for lines, _ in sizes], 0.99) <= 40, sizes[:10]


def test_no_function_is_more_complex_than_12() -> None:
    assert [each for each in meters.complex_functions(meters.package()) if each[0] > 12] == []


def test_no_except_is_silent() -> None:
    assert meters.silent_excepts(meters.package()) == []


def test_a_class_name_has_one_meaning() -> None:
    assert meters.repeated_classes(meters.package()) == {}


def test_no_folder_has_more_than_16_files() -> None:
    assert meters.big_folders(meters.package()) == {}


def test_parts_get_what_they_need_when_they_are_made() -> None:
    """A callback that is empty at construction is a slot that somebody may forget to fill."""
    assert meters.callback_slots(meters.package()) == []


def test_the_engine_does_not_set_the_attributes_of_other_objects() -> None:
    found = meters.set_from_outside(meters.package(), "ninelives/engine/")
    assert len(found) <= 5, found


def test_the_engine_does_not_ask_whether_a_store_is_shared() -> None:
    assert meters.shared_branches(meters.package(), "ninelives/engine/") == []


def test_code_and_tests_cite_only_documents_of_this_repository() -> None:
    assert meters.absent_citations([*meters.package(), *meters.tests()]) == []


def test_at_most_10_sentences_of_the_documents_have_more_than_35_words() -> None:
    found = meters.long_sentences()
    assert len(found) <= 10, found


PLANTED = '''
class Slot:
    def __init__(self):
        self.told: Callable[[], None] = nothing
        self.heard = lambda: None
        self.given: Callable[[], None] = really
        self.later: Callable[[], None] | None = None

def nothing(): ...

def deep(a, b):
    """By A1, ZZ and house rule 6.1."""
    try:
        return [x for x in a if x and b] if a else None
    except ValueError:
        pass
'''


@pytest.fixture
def planted(tmp_path: object) -> meters.Source:

    return meters.parse_source("ninelives/core/planted.py", PLANTED)


def test_the_meters_find_what_is_planted(planted: meters.Source) -> None:
    assert [each.split()[1] for each in meters.callback_slots([planted])] == ["self.told", "self.heard", "self.later"]
    assert meters.complex_functions([planted])[0][0] == 5
    assert len(meters.silent_excepts([planted])) == 1
    assert meters.long_functions([planted])[0][0] == 6
    assert meters.cited_codes(planted) == {"A1"}
    assert meters.absent_citations([planted]) == ["ninelives/core/planted.py: house rule"]
    twin = planted._replace(name="ninelives/http/planted.py")
    assert set(meters.repeated_classes([planted, twin])) == {"Slot"}
    assert meters.repeated_classes([planted, twin._replace(name="ninelives/drill/x.py")]) == {}
    assert meters.big_folders([planted._replace(name=f"ninelives/core/{n}.py") for n in range(17)]) == {
        "ninelives/core": 17
    }


@pytest.mark.parametrize(
    "text",
    ['"""As written (house\nrule 6.7)."""', 'def f():\n    """By house\n    rule 6.7."""', "# By house\n# rule 6.7"],
)
def test_a_citation_over_a_line_break_is_found(text: str) -> None:

    source = meters.parse_source("ninelives/core/planted.py", text)
    assert meters.absent_citations([source]) == ["ninelives/core/planted.py: house rule"]


def test_a_sentence_is_measured_without_code_tables_and_headings() -> None:
    text = "# A heading\n\nOne sentence. Another one.\n\n```sh\nmake serve\n```\n\n| a | b |\n- an item\n"
    found = [" ".join(each.split()) for each in meters.sentences(text)]
    assert [each for each in found if each] == ["One sentence.", "Another one.", "- an item"]
