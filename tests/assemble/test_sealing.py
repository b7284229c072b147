"""The layers of a thread's requests, hashed one request after the other."""

import pytest
from hypothesis import given
from thread_strategies import logs, policies

from quire.assemble import Built, Policy, requests
from quire.assemble.layers import enclose
from quire.observe import LayerHashes
from quire.thread import chat_messages
from quire.values import Entry

pytestmark = pytest.mark.moves_prefix(reason="small budgets make rebases")


@given(logs, policies())
def test_hashes_that_are_kept_are_those_of_the_envelope(entries: list[Entry], policy: Policy) -> None:
    sealing = LayerHashes()
    for one in requests(entries, policy):
        if isinstance(one, Built):
            whole = enclose(one, chat_messages(one))
            assert sealing.of(one) == {layer.id: layer.sha256 for layer in whole.layers}
