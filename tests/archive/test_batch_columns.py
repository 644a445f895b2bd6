"""Columns of strings are built in one go, and hold what Arrow's own builder would."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.archive.batch import _string_array, _utf8_array

texts = st.text(
    st.one_of(st.characters(max_codepoint=127), st.characters(exclude_categories=["Cs"])), max_size=8
)


@given(st.lists(st.one_of(texts, st.none()), max_size=12))
def test_strings_and_texts_given_as_bytes_are_what_arrow_makes_of_them(values: list[str | None]) -> None:
    for few in (values, [value for value in values if value is not None]):
        encoded = [None if value is None else value.encode() for value in few]
        for found, kind in ((_string_array(few), pa.string()), (_utf8_array(encoded), pa.large_string())):
            found.validate(full=True)
            assert found.equals(pa.array(few, kind))
